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
    halted: (o) => o.halted, paused: (o) => number(o.paused_queues),
  };

  // Charts

  const time = (sample) => sample[0] / 1000;
  const drawLive = (samples) => {
    // A rate over less than a few seconds is noise, so the newest sample waits for its successor.
    const steady = samples.filter((sample, i) => !i || i + 1 < samples.length || sample[0] - samples[i - 1][0] > 2.5e6);
    const pairs = steady.slice(1).map((sample, i) => [steady[i], sample]);
    const each = (i) => pairs.map(([before, after]) => Math.max(0, after[i] - before[i]) / Math.max(0.001, (after[0] - before[0]) / 1e6));
    charts.line(document.getElementById("rates"), pairs.map(([, sample]) => time(sample)), [
      { name: "pushed", color: "s1", values: each(1) },
      { name: "completed", color: "s2", values: each(2) },
      { name: "failed", color: "s3", values: each(3) },
    ]);
    charts.line(document.getElementById("backlog"), samples.map(time), [
      { name: "backlog", color: "s1", values: samples.map((sample) => sample[4]), area: true },
      { name: "leased", color: "s6", values: samples.map((sample) => sample[5]) },
    ]);
  };
  const drawHistory = (days) => {
    const labels = days.map((day) => new Date(day.day * 864e5).toISOString().slice(0, 10));
    charts.bars(document.getElementById("history"), labels, [
      { name: "processed", color: "s2", values: days.map((day) => day.processed) },
      { name: "failed", color: "s3", values: days.map((day) => day.failures) },
    ]);
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
  const showOldest = ({ oldest_job: job }) => {
    const which = job ? String(job.seq) : "";
    if (oldest.dataset.which === which || oldest.contains(document.activeElement)) return;
    oldest.dataset.which = which;
    const small = document.createElement("small");
    if (job) {
      const since = document.createElement("time");
      since.className = "ago";
      since.dateTime = new Date(job.ready_at / 1000).toISOString();
      small.append("in ", link(toQueue(job.queue), shown(job.queue, 40)));
      oldest.replaceChildren(link(toJob(job.jid, job.seq), since), small);
      renderTimes(oldest);
    } else {
      small.textContent = "no ready jobs";
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
    document.getElementById("paused").hidden = !overview.paused_queues;
    showOldest(overview);
    drawLive(overview.samples);
  });
})();
