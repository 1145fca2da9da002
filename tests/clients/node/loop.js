// The worker loop of npm's faktory-worker with two jobs; what happens is printed, a line each.
// usage: node loop.js QUEUE WID   (FAKTORY_URL names the server, FAKTORY_CA the authority's certificate)
"use strict";

const fs = require("fs");
const faktory = require("faktory-worker");
const { tlsOptions } = require("./tls");

const [queue, wid] = process.argv.slice(2);

faktory.register("echo", async (...args) => {
  console.log("echo " + JSON.stringify(args));
});

// Fails the first time, succeeds the second.
faktory.register("stumble", async (path) => {
  if (!fs.existsSync(path)) {
    fs.writeFileSync(path, "");
    console.log("stumbled");
    throw new Error("stumbled");
  }
  console.log("recovered");
});

async function main() {
  const worker = await faktory.work({ wid, queues: [queue], concurrency: 2, beatInterval: 1, tlsOptions });
  // The library tells nobody that it was quieted.
  const watch = setInterval(() => {
    if (!worker.quieted) return;
    clearInterval(watch);
    console.log("quieted");
  }, 50);
  watch.unref();
}

main();
