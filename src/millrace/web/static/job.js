// The page of a job: scroll the timeline to its end.
"use strict";
{
  const toTheEnd = () => {
    const drawn = document.querySelector(".drawn");
    if (drawn) drawn.scrollLeft = drawn.scrollWidth;
  };
  document.addEventListener("fresh", toTheEnd);
  toTheEnd();
}
