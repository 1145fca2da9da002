// While the pipeline runs, its part of the page is kept fresh; when it is done, so is all of it.
"use strict";
(() => {
  const every = 2000;
  const look = async () => {
    const here = document.getElementById("pipeline");
    if (!here || !("running" in here.dataset)) return;
    if (!document.hidden) {
      const response = await fetch(`${document.body.dataset.prefix}/analytics/pipeline`, { headers: { Accept: "text/html" } });
      if (response.ok) {
        const page = new DOMParser().parseFromString(await response.text(), "text/html");
        const newer = page.getElementById("pipeline");
        if (newer && !("running" in newer.dataset)) {
          location.reload();
          return;
        }
        if (newer) here.replaceWith(document.adoptNode(newer));
      }
    }
    setTimeout(() => look().catch(again), every);
  };
  const again = () => setTimeout(() => look().catch(again), every);
  look().catch(again);
})();
