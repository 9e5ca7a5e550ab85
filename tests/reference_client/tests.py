"""Compares the outcome of the reference's own tests with the list of those that are known to fail: tests.py LIST EVENTS

LIST is the page with the list, EVENTS a file with the output of `go test -json`. The exit code is 1 if they differ.
"""

import json
import re
import sys

page, events = sys.argv[1:]
outcomes, output = {}, {}
with open(events, encoding="utf-8") as lines:
    for line in lines:
        event = json.loads(line)
        test = event.get("Test")
        if event["Action"] in ("build-output", "build-fail") or (test is None and event["Action"] == "fail"):
            print(event.get("Output", ""), end="")
        if test is None:
            continue
        package = event["Package"].split("/step-runner/", 1)[-1]
        name = f"{package} {test}"
        if event["Action"] == "output":
            output.setdefault(name, []).append(event["Output"])
        elif event["Action"] in ("pass", "fail", "skip"):
            outcomes[name] = event["Action"]

# Only leaves are counted: a test with subtests fails if one of them does.
whole = {name for name in outcomes if not any(other.startswith(name + "/") for other in outcomes)}
failed = {name for name in whole if outcomes[name] == "fail"}
with open(page, encoding="utf-8") as text:
    rows = re.findall(r"^\| `((?:cmd|pkg|integration_test)[^`]*)` \|", text.read(), re.M)
listed = set(rows)

misses = 0
for name in sorted(failed - listed):
    misses += 1
    print(f"NOT LISTED: {name}")
    print("".join(output.get(name, [])))
for name in sorted(listed - failed):
    misses += 1
    print(f"LISTED, BUT {outcomes.get(name, 'not there')}: {name}")
passed = sum(1 for name in whole if outcomes[name] == "pass")
print(f"reference's own tests: {len(whole)} run, {passed} passed, {len(failed)} failed, {misses} not as listed")
sys.exit(1 if misses or not whole else 0)
