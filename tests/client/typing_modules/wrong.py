"""Each line with a comment `error` is wrong, and a type checker must report exactly these lines."""

from millrace import JobHandle, Millrace

app = Millrace()


@app.task(queue="mail", retries=5)
def send(to: str, *, subject: str = "Hi") -> int:
    return len(to + subject)


send.push(7)  # error
send.push()  # error
send.push("ada@example.org", "Hello")  # error
send.push("ada@example.org", sbject="Hello")  # error
send.options(priority=5).push(7)  # error
send.options(prio=5)  # error
send.job(b"ada@example.org")  # error
send(7)  # error
text: str = send.push("ada@example.org").result()  # error
handle: JobHandle[str] = send.push("ada@example.org")  # error
app.task(retries="five")  # error
app.task(queue=7)  # error
send.push("ada@example.org", subject="Hello")
