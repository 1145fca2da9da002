"""Tokens with a meaning for a parser, by target."""

#: Numbers at the edges of the syntaxes of all protocols.
NUMBERS = (
    b"0", b"-0", b"1", b"-1", b"+4", b"04", b"1.0", b"1e3", b"1e400", b"-1e300", b"1e-300", b"0x10",
    b"-0xffffffffffffffff", b"255", b"256", b"2147483648", b"4294967295", b"4294967296", b"86400001",
    b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809",
    b"18446744073709551615", b"18446744073709551616", b"99999999999999999999999999", b"2.5", b"nan",
    b"inf", b"1_0", b"\xd9\xa1",
)  # fmt: skip
MOMENTS = (
    b"2026-11-15T19:43:51Z", b"2026-11-15T19:43:53Z", b"2030-01-01T00:00:00Z", b"0001-01-01T00:00:00Z",
    b"0000-01-01T00:00:00Z", b"9999-12-31T23:59:59Z", b"9999-12-31T23:59:59.999999999Z",
    b"0001-01-01T00:00:00+23:59", b"9999-12-31T23:59:59-23:59", b"2026-11-15T19:43:51,5Z",
    b"2026-02-30T00:00:00Z", b"2026-11-15T24:00:00Z", b"2026-11-15T19:43:60Z",
)  # fmt: skip
SPANS = (
    b"1ms",
    b"1s",
    b"1m",
    b"1h0m0s",
    b"-1s",
    b".5s",
    b"1.s",
    b"9223372036s",
    b"\xc2\xb5s",
    b"\xce\xbcs",
)
TEXTS = (
    b'"\\ud800"', b'"\\udc00x"', b'"\\ud83d\\ude00"', b'"\xff"', b'"\\u0000"', b'"<&>"', b'"\xe2\x80\xa8"',
    b'"\\/"', b'"\xc5\xbf"', b'"\x7f"', b'"\\"', b'""',
)  # fmt: skip
JSON = (
    b"null", b"true", b"[]", b"{}", b"[[[[[[[[", b"]]]]]]]]", b'{"a":{"a":{"a":', b'{"a":1,"a":2}', b"[1,]",
    b"[" * 1100 + b"]" * 1100, b"[" * 300, b"\r", b"\t", *NUMBERS, *TEXTS,
)  # fmt: skip
FAKTORY = (
    b"PUSH ", b"PUSHB ", b"FETCH ", b"ACK ", b"FAIL ", b"BEAT ", b"INFO", b"FLUSH", b"END", b"MUTATE ",
    b"QUEUE PAUSE ", b"QUEUE RESUME ", b"QUEUE REMOVE ", b"QUEUE LATENCY ", b"WORKER QUIET ", b"HELLO ",
    b'{"jid":"job-0001","jobtype":"T","args":[]}', b'"at":', b'"retry":', b'"reserve_for":', b'"custom":',
    b'"queue":', b'"backtrace":', b'"created_at":', b'"failure":', b'"JID":', b'"wid":"w1"', b'"rss_kb":',
    b'"current_state":"quiet"', b'{"cmd":"requeue","target":"retries"}', b'"filter":{"regexp":"*"}',
    b'MILLRACE {"open":"L"}', b'MILLRACE {"release":"L"}', b'MILLRACE {"discard":"L"}', b"MILLRACE ",
    b'MILLRACE {"stage":"L","jobs":[', b'MILLRACE {"read":{"state":"blocked"}}', b'"most":1', b'"cursor":1',
    b"\r\n", b"\n", b"*", *MOMENTS,
)  # fmt: skip
#: Empty arguments in place of required ones.
FAKTORY += tuple(
    b"%b {}\r\n" % verb
    for verb in (b"FAIL", b"ACK", b"BEAT", b"MUTATE", b"PUSH", b"PUSHB", b"QUEUE")
)
WORKQ = (
    b"add ", b"schedule ", b"run ", b"lease ", b"complete ", b"fail ", b"result ", b"delete ", b"inspect job ",
    b"inspect jobs ", b"inspect scheduled-jobs ", b"inspect queues ", b"inspect queue ", b"inspect server",
    b"6ba7b810-9dad-41d1-80b4-000000000001", b"6ba7b810-9dad-41d1-80b4-000000000002", b"urn:uuid:",
    b"00000000-0000-4000-8000-000000000001", b" -priority=", b" -max-fails=", b" -max-attempts=", b"-x=",
    b"ping 1000 60000 4\r\npong\r\n", b"\r\n", b"\n", *MOMENTS, *NUMBERS,
)  # fmt: skip
MASENKO = (
    b"PUSH ", b"FETCH ", b"ACK ", b"NACK ", b"INFO", b"QUIT", b"PING", b"ATOMIC\n", b"DONE\n", b'{"name":"a"}',
    b'"queue":', b'"deadqueue":"b"', b'"payload":', b'"retry":', b'"execute_at":', b'"blocked_by":[-1]',
    b'"blocked_by":[1,2]', b'{"id":1}', b'{"id":2}', b'"queues":["default","b"]', b'"timeout":"1ms"',
    b"\n", b"\r\n", b'"NAME":', *MOMENTS, *SPANS,
)  # fmt: skip
GOQUEUE = (
    b"ADD\0", b"RESERVE\0", b"DELETE\0", b"CONNECT\0", b"a\0", b"\0\0\0\0", b"\1\0\0\0", b"\xff\xff\xff\xff",
    b"\1\0\0\0\0\0\0\0", b"ADD\0a\0\0\0\0\0\1\0\0\0\3\0\0\0abc", b"RESERVE\0a\0\1\0\0\0",
)  # fmt: skip
RESP = (
    b"*1\r\n$4\r\nPING\r\n", b"*2\r\n", b"*0\r\n", b"*-1\r\n", b"$-1\r\n", b"$0\r\n\r\n", b"$1\r\na\r\n", b"*05\r\n",
    b"*999999999\r\n", b"%1\r\n", b"~1\r\n", b">1\r\n", b"|1\r\n", b"#t\r\n", b"_\r\n", b",1.5\r\n", b"(1\r\n",
    b"=8\r\ntxt:PING\r\n", b"+OK\r\n", b":1\r\n", b'"\\x41"', b"'", b"\r\n", b"\n",
)  # fmt: skip
QLESS = (
    *RESP,
    b"QLESS.PUT 1 q a klass {} 1 0\r\n", b"QLESS.POP 1 q w 1 2\r\n", b"QLESS.COMPLETE 0 a w q 3 {}\r\n",
    b"QLESS.RECUR 0 on q r klass {} 1 interval 1 0\r\n", b"QLESS.FAIL 0 a w group message 3\r\n",
    b"QLESS.TAG 0 add a 1 t\r\n", b"QLESS.GET 0 a\r\n", b" depends ", b" tags ", b" priority ", b" retries ",
    b"EVALSHA 29689e4db6e13a280dc45e24f18d2ef48420eb0e 0 ", b"put 1 w q a klass {} 0\r\n", b"pop 2 q w 1\r\n",
    b"MULTI\r\n", b"EXEC\r\n", b"WATCH k\r\n", b"SUBSCRIBE c\r\n", b"PSUBSCRIBE *\r\n", b"PUBLISH c m\r\n",
    b"RPUSH l a b\r\n", b"BRPOP l 0\r\n", b"HSET h f v\r\n", b"HELLO 3\r\n", b"AUTH sesame\r\n", b"KEYS *\r\n",
    b"EXPIRE l ", b"ql:q:q-work", b"ql:j:a", b"RESET\r\n", b"log 1 a message ", b"config.set 1 heartbeat ",
    *NUMBERS, *JSON[:10],
)  # fmt: skip
#: The start of requests above the limit of some settings.
LONG = {
    "faktory": b"PUSH " + b"x" * 2000,
    "workq": b"add 6ba7b810-9dad-41d1-80b4-000000000001 a 1000 1000 99999\r\n" + b"x" * 2000,
    "masenko": b'ATOMIC\nPUSH {"name":"' + b"x" * 2000,
    "goqueue": b"ADD\0a\0\0\0\0\0\1\0\0\0\xff\xff\0\0" + b"x" * 2000,
    "qless": b"*2\r\n$99999\r\n" + b"x" * 2000,
}
_BY_TARGET = {
    "faktory": (*FAKTORY, *JSON),
    "workq": WORKQ,
    "masenko": (*MASENKO, *JSON),
    "goqueue": GOQUEUE,
    "qless": QLESS,
    "workq-blocks": WORKQ,
    "goqueue-blocks": GOQUEUE,
    "crossing": (*FAKTORY[:7], *WORKQ, *MASENKO, *GOQUEUE, *QLESS),
    "go_scanner": JSON,
    "go_json": (b'{"jid":1,"JID":2}', b'{"list":["a"]}', b'{"n":1}', *JSON),
    "push": (*MASENKO, *JSON),
    "times": (*MOMENTS, *SPANS, *NUMBERS),
    "resp": RESP,
    "lua": (
        *NUMBERS,
        *JSON,
        b'["a","b"]',
        b'[1e400,"x"]',
        b"QlessAPI.put = function(now, me, queue",
    ),
    "globs": (b"a*b\0axb", b"[a-z]\0b", b"[^a]", b"\\*", b"[", b"[]", b"[^]", b"[z-a]", b"?"),
    "changes": (
        b"\x93\x90\x91" + b"\x91" * 1100 + b"\x00\x90",
        b"\x93\x90\x90\x90",
        b"\x93\x90\x90\x91\x01",
        b"\xc0",
        b"\xdc",
        b"\xc4\x00",
    ),
}


def of(name: str) -> tuple[bytes, ...]:
    return _BY_TARGET[name]
