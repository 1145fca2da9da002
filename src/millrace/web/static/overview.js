// The overview: numbers and charts that follow the live stream.
"use strict";
(() => {
  const rate = (value) => value < 10 ? value.toFixed(1) : number(value);
  const span = (us) => us < 1000 ? `${us} µs` : us < 1e6 ? `${Number((us / 1e3).toPrecision(3))} ms` : `${Number((us / 1e6).toPrecision(3))} s`;
  const percent = (part) => part > 0 && part < 0.1 ? `${(100 * part).toFixed(1)}%` : `${Math.round(100 * part)}%`;
  const errorRate = (samples) => {
    const last = samples.at(-1);
    const first = samples.findLast((sample) => last[0] - sample[0] >= 300e6) ?? samples[0];
    const failed = last[3] - first[3], ended = failed + last[2] - first[2];
    return ended > 0 ? percent(failed / ended) : "–";
  };
  const told = {
    pushed: (o) => rate(o.rates[0]), completed: (o) => rate(o.rates[1]), failed: (o) => rate(o.rates[2]),
    error_rate: (o) => errorRate(o.samples),
    backlog: (o) => number(o.counts[0] + o.counts[1] + o.counts[2]),
    commit_p50: (o) => o.commit.count ? span(o.commit.p50) : "–",
    commit_p99: (o) => o.commit.count ? span(o.commit.p99) : "–",
    processed: (o) => number(o.processed), failures: (o) => number(o.failures),
    leased: (o) => number(o.counts[3]), ready: (o) => number(o.counts[2]),
    retrying: (o) => number(o.retrying), scheduled: (o) => number(o.counts[0] - o.retrying),
    blocked: (o) => number(o.counts[1]), dead: (o) => number(o.counts[5]), done: (o) => number(o.counts[4]),
    connections: (o) => number(o.protocols.reduce((sum, each) => sum + (each.name === "control" ? 0 : each.connections), 0)),
    halted: (o) => o.halted, paused: (o) => number(o.paused),
  };

  // Charts

  const time = (sample) => new Date(sample[0] / 1000);
  const line = (name, colour, x, y) => ({ name, x, y, mode: "lines", line: { color: charts.colour(colour), width: 2 } });
  const clock = { xaxis: {
    nticks: 6, tickangle: 0, hoverformat: "%H:%M:%S",
    tickformatstops: [{ dtickrange: [null, 59_999], value: "%H:%M:%S" }, { dtickrange: [60_000, null], value: "%H:%M" }],
  } };
  const drawLive = (samples) => {
    // What was counted since less than a few seconds is noise.
    const steady = samples.filter((sample, i) => !i || i + 1 < samples.length || sample[0] - samples[i - 1][0] > 2.5e6);
    const pairs = steady.slice(1).map((sample, i) => [steady[i], sample]);
    const x = pairs.map(([, sample]) => time(sample));
    const each = (i) => pairs.map(([before, after]) => Math.max(0, after[i] - before[i]) / Math.max(0.001, (after[0] - before[0]) / 1e6));
    charts.draw(document.getElementById("rates"), () => [
      line("pushed", "s1", x, each(1)), line("done", "s2", x, each(2)), line("failed", "s3", x, each(3)),
    ], clock);
    const all = samples.map(time);
    charts.draw(document.getElementById("backlog"), () => [
      { ...line("backlog", "s1", all, samples.map((sample) => sample[4])), fill: "tozeroy" },
      line("with workers", "s6", all, samples.map((sample) => sample[5])),
    ], clock);
  };
  const drawHistory = (days) => {
    const x = days.map((day) => new Date(day.day * 864e5).toISOString().slice(0, 10));
    const bars = (name, colour, y) => ({ name, x, y, type: "bar", marker: { color: charts.colour(colour) } });
    charts.draw(document.getElementById("history"), () => [
      bars("processed", "s2", days.map((day) => day.processed)), bars("failed", "s3", days.map((day) => day.failures)),
    ], { barmode: "group", xaxis: { type: "date" } });
  };

  drawLive(JSON.parse(document.getElementById("rates").dataset.samples));
  drawHistory(JSON.parse(document.getElementById("history").dataset.days));

  // Live

  const oldest = document.getElementById("oldest");
  const link = (path, inner) => {
    const made = document.createElement("a");
    made.href = prefix + path;
    made.append(inner);
    return made;
  };
  const tellOldest = ({ oldest: at, oldest_jid: jid, oldest_seq: seq, oldest_queue: queue }) => {
    const which = at ? String(seq) : "";
    if (oldest.dataset.which === which || oldest.contains(document.activeElement)) return;
    oldest.dataset.which = which;
    const small = document.createElement("small");
    if (at) {
      const since = document.createElement("time");
      since.className = "ago";
      since.dateTime = new Date(at / 1000).toISOString();
      small.append("in ", link(toQueue(queue), shown(queue, 40)));
      oldest.replaceChildren(link(toJob(jid, seq), since), small);
      tellTimes(oldest);
    } else {
      small.textContent = "no job is ready";
      oldest.replaceChildren("none", small);
    }
  };

  document.addEventListener("overview", (event) => {
    const overview = event.detail;
    for (const element of document.querySelectorAll("[data-number]")) {
      const text = told[element.dataset.number](overview);
      if (element.textContent !== text) element.textContent = text;
    }
    document.getElementById("halted").hidden = !overview.halted;
    document.getElementById("paused").hidden = !overview.paused;
    tellOldest(overview);
    drawLive(overview.samples);
  });
})();
