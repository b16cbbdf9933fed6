"""Compares the clock of a device with the SuperLink's before Flower does: it turns away what was signed at another
time, and does not say why."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import time
from email.utils import parsedate_to_datetime

from handheld.errors import HandheldError
from handheld.federated.keys import Keys

#: How far a clock may be behind and ahead of the SuperLink's (Flower 1.41), and the time to wait for its answer.
BEHIND_S, AHEAD_S, ANSWER_S = 305.0, 5.0, 5.0


def check_clock(link: str, keys: Keys) -> None:
    """Raise HandheldError if the SuperLink would turn this machine away because of its clock. A SuperLink that does not
    answer is no reason: the SuperNode waits for it."""
    theirs = _clock_of(link, keys)
    if theirs is None:
        return
    ahead = time.time() - theirs
    if -BEHIND_S < ahead < AHEAD_S + 1:  # The answer has whole seconds.
        return
    where = f"{abs(ahead):,.0f} s {'ahead of' if ahead > 0 else 'behind'} that of the SuperLink on {link}"
    raise HandheldError(
        f"the clock of this machine is {where}, which would refuse its key (401). Try: check the clock of both, for "
        "example: timedatectl set-ntp true"
    )


def _clock_of(link: str, keys: Keys) -> float | None:
    """The time of a SuperLink, from the header of an answer; None if there is no answer."""
    host, _, port = link.rpartition(":")
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError, TypeError):
        context = ssl.create_default_context(cafile=str(keys.ca))
        connection = http.client.HTTPSConnection(host.strip("[]"), int(port), timeout=ANSWER_S, context=context)
        with contextlib.closing(connection):
            connection.request("GET", "/health")
            return parsedate_to_datetime(connection.getresponse().headers["Date"]).timestamp()
    return None
