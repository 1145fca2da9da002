// A queue's statistics: Qless's histogram of 148 slots, 60 seconds, 59 minutes, 23 hours and 6 days.
"use strict";
(() => {
  const SECTIONS = [60, 119, 142, 148];
  const TICKS = [[0, "0 s"], [15, "15 s"], [30, "30 s"], [45, "45 s"], [60, "1 min"], [74, "15 min"], [89, "30 min"],
    [104, "45 min"], [119, "1 h"], [130, "12 h"], [142, "1 d"], [147, "6 d"]];
  for (const element of document.querySelectorAll("[data-slots]")) {
    const slots = JSON.parse(element.dataset.slots);  // [number, label, count]
    const largest = slots.at(-1)[0];
    const end = SECTIONS.find((each) => largest < each);
    charts.bars(element, slots.map((slot) => slot[1]), [
      { name: "jobs", color: "s1", values: slots.map((slot) => slot[2]) },
    ], { at: slots.map((slot) => slot[0]), slots: end, ticks: TICKS });
  }
})();
