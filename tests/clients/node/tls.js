// What tls.connect needs to trust the test's own authority, or nothing when the server is plain.
"use strict";

const fs = require("fs");

exports.tlsOptions = process.env.FAKTORY_CA ? { ca: fs.readFileSync(process.env.FAKTORY_CA) } : undefined;
