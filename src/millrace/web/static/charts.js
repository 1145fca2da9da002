// Small SVG charts: charts.line(element, x, series, options) and charts.bars(element, labels, series, options).
// A series is { name, color, values, area }, where color names a CSS variable ("s1" is --s1). Colors follow the
// page's scheme, because the style sheet applies them. Pointing at a chart shows the values there.
"use strict";
const charts = (() => {
  const HEIGHT = 240, TOP = 8, BOTTOM = 24, RIGHT = 12, LETTER = 7;
  const SVG = "http://www.w3.org/2000/svg";
  const svg = (name, attributes, ...children) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const html = (name, className, ...children) => {
    const made = Object.assign(document.createElement(name), { className });
    made.append(...children);
    return made;
  };
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const exact = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });

  // 0 to a round number above the largest value, in up to five steps of 1, 2 or 5 times a power of ten.
  const scale = (largest) => {
    const rough = Math.max(largest, 1) / 4;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
    const count = Math.ceil(Math.max(largest, 1) / step - 1e-9);
    return Array.from({ length: count + 1 }, (_, i) => i * step);
  };

  const draw = (chart) => {
    const { element, series, count, place, label, ticks } = chart;
    const width = element.clientWidth;
    if (!width) return;
    const steps = scale(Math.max(0, ...series.flatMap((each) => each.values)));
    const left = 10 + LETTER * Math.max(...steps.map((step) => compact.format(step).length));
    const x = (part) => left + part * (width - left - RIGHT);
    const y = (value) => TOP + (1 - value / steps.at(-1)) * (HEIGHT - TOP - BOTTOM);
    const picture = svg("svg", { width, height: HEIGHT, role: "img", "aria-label": series.map((each) => each.name).join(", ") });
    for (const step of steps) {
      picture.append(svg("line", { class: "grid", x1: left, x2: width - RIGHT, y1: y(step), y2: y(step) }));
      picture.append(svg("text", { x: left - 6, y: y(step) + 4, "text-anchor": "end" }, compact.format(step)));
    }
    let free = 0;
    for (const [part, text] of ticks(Math.max(2, Math.floor((width - left) / 90)))) {
      const half = (text.length * LETTER) / 2, middle = Math.min(Math.max(x(part), half), width - half);
      if (middle - half < free) continue;
      free = middle + half + LETTER;
      picture.append(svg("text", { x: middle, y: HEIGHT - 6, "text-anchor": "middle" }, text));
    }
    const shapes = svg("g", { class: "shapes" });
    series.forEach((each, number) => {
      if (chart.bars) {
        const slot = (x(1) - x(0)) / chart.slots, wide = Math.max(1, (slot * 0.8) / series.length);
        each.values.forEach((value, i) => {
          const start = x(place(i)) - (wide * series.length) / 2 + number * wide;
          shapes.append(svg("rect", { class: `bar ${each.color}`, x: start, width: wide, y: y(value), height: y(0) - y(value) }));
        });
        return;
      }
      if (!each.values.length) return;
      const points = each.values.map((value, i) => `${x(place(i)).toFixed(1)} ${y(value).toFixed(1)}`);
      if (each.area) shapes.append(svg("path", { class: `area ${each.color}`, d: `M${x(place(0))} ${y(0)} L${points.join(" L")} L${x(place(count - 1))} ${y(0)} Z` }));
      shapes.append(svg("path", { class: `line ${each.color}`, d: `M${[points[0], ...points].join(" L")}` }));
    });
    const rule = svg("line", { class: "rule", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    picture.append(shapes, rule);
    const values = html("div", "values");
    values.hidden = true;
    const legend = series.length > 1
      ? [html("ul", "legend", ...series.map((each) => html("li", each.color, html("span", "", each.name))))] : [];
    element.replaceChildren(...legend, picture, values);

    const point = () => {
      if (chart.pointer === null || !count) {
        values.hidden = true;
        rule.setAttribute("visibility", "hidden");
        return;
      }
      let nearest = 0;
      for (let i = 1; i < count; i += 1) {
        if (Math.abs(x(place(i)) - chart.pointer) < Math.abs(x(place(nearest)) - chart.pointer)) nearest = i;
      }
      const at = x(place(nearest));
      rule.setAttribute("x1", at);
      rule.setAttribute("x2", at);
      rule.setAttribute("visibility", "visible");
      values.replaceChildren(html("b", "", label(nearest)), ...series.map((each) =>
        html("span", each.color, `${each.name} ${exact.format(each.values[nearest])}`)));
      values.hidden = false;
      const room = width - values.offsetWidth;
      values.style.left = `${Math.max(0, at + 12 > room ? Math.min(room, at - 12 - values.offsetWidth) : at + 12)}px`;
      values.style.top = `${picture.offsetTop + TOP}px`;
    };
    picture.addEventListener("pointermove", (event) => {
      chart.pointer = event.clientX - picture.getBoundingClientRect().left;
      point();
    });
    picture.addEventListener("pointerleave", () => {
      chart.pointer = null;
      point();
    });
    point();
  };

  const drawn = new Map();
  const resized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const chart = drawn.get(target);
      if (chart && chart.width !== target.clientWidth) {
        chart.width = target.clientWidth;
        draw(chart);
      }
    }
  });
  const show = (chart) => {
    const { element } = chart;
    chart.pointer = drawn.get(element)?.pointer ?? null;
    chart.width = element.clientWidth;
    if (!drawn.has(element)) resized.observe(element);
    drawn.set(element, chart);
    draw(chart);
  };

  const clock = (seconds) => new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: seconds ? "2-digit" : undefined, hourCycle: "h23" });
  const CLOCK = clock(true);
  // Times in milliseconds. Ticks are at round times in the browser's time zone.
  const timeTicks = (first, last) => (most) => {
    const step = [5e3, 15e3, 30e3, 60e3, 120e3, 300e3].find((each) => (last - first) / each <= most) ?? 600e3;
    const format = clock(step < 60e3), found = [];
    for (let at = Math.ceil(first / step) * step; at <= last; at += step) {
      found.push([(at - first) / Math.max(1, last - first), format.format(at)]);
    }
    return found;
  };
  const line = (element, x, series) => {
    const first = x[0] ?? 0, last = x.at(-1) ?? 0;
    show({
      element, series, count: x.length, place: (i) => (x[i] - first) / Math.max(1, last - first),
      label: (i) => CLOCK.format(x[i]), ticks: x.length > 1 ? timeTicks(first, last) : () => [],
    });
  };
  // `at` are the slots of the bars, out of `slots`; `ticks` are pairs of a slot and its text.
  const bars = (element, labels, series, { at = labels.map((_, i) => i), slots = labels.length, ticks = null } = {}) => {
    const place = (slot) => (slot + 0.5) / slots;
    const evenly = (most) => {
      const step = Math.ceil(labels.length / most);
      return labels.map((text, i) => [place(at[i]), text]).filter((_, i) => (labels.length - 1 - i) % step === 0);
    };
    show({
      element, series, bars: true, slots, count: labels.length, place: (i) => place(at[i]), label: (i) => labels[i],
      ticks: ticks ? () => ticks.filter(([slot]) => slot < slots).map(([slot, text]) => [place(slot), text]) : evenly,
    });
  };
  return { line, bars };
})();
