// A job's page: the timeline is looked at from its end.
"use strict";
{
  const toTheEnd = () => {
    const drawn = document.querySelector(".drawn");
    if (drawn) drawn.scrollLeft = drawn.scrollWidth;
  };
  document.addEventListener("fresh", toTheEnd);
  toTheEnd();
}
