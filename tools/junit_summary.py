#!/usr/bin/env python3
"""Reads CTest's JUnit file and ends with the plain line `N passed, N failed`.

Exit status 1 if anything failed or nothing ran. Skipped tests are named: they are neither.
"""
import sys
import xml.etree.ElementTree as ElementTree


def main(path):
    failed, skipped, n_passed = [], [], 0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        status = case.get("status")
        if case.find("skipped") is not None or status in ("notrun", "disabled"):
            # CTest says `notrun` also of a program that could not be started: that is a failure.
            reason = case.find("skipped")
            message = reason.get("message", "") if reason is not None else ""
            (skipped if "SKIP_RETURN_CODE" in message else failed).append(case.get("name"))
        elif status == "run":
            n_passed += 1
        else:
            failed.append(case.get("name"))
    if skipped:
        print("skipped: " + " ".join(skipped))
    if failed:
        print("failed: " + " ".join(failed))
    print(f"{n_passed} passed, {len(failed)} failed")
    return 1 if failed or n_passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
