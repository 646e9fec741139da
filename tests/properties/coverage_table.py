"""Adds up the coverage of random programs, and prints it as tables.

property_ranks prints lines "count KIND DTYPE OP N", "feature KIND FEATURE N"
and "event NAME N". Every (kind, dtype, op) among them must be covered.
"""

import collections


class Coverage:
    def __init__(self):
        self.counts = collections.Counter()
        self.features = collections.Counter()
        self.events = collections.Counter()

    def add(self, text):
        """Adds what one run has printed; returns its events."""
        events = collections.Counter()
        for line in text.splitlines():
            sort, *key, n = line.split()
            if sort == "count":
                self.counts[tuple(key)] += int(n)
            elif sort == "feature":
                self.features[tuple(key)] += int(n)
            elif sort == "event":
                events[key[0]] += int(n)
        self.events.update(events)
        return events

    def gaps(self):
        """Combinations that must be covered, but were not."""
        # A barrier has no dtype or op; most of its features are none.
        gaps = [" ".join(key) for key, n in self.counts.items() if n == 0]
        kinds = sorted({kind for kind, _, _ in self.counts})
        for kind in kinds + ["barrier"]:
            must = ["set_across", "set_in_node", "set_of_one", "with_joined"]
            if kind != "barrier":
                must += ["unnamed", "grouped", "no_elements", "arena", "mismatch"]
            gaps += ["%s %s" % (kind, f) for f in must if self.features[kind, f] == 0]
        gaps += ["broadcast root_joined"] if self.features["broadcast", "root_joined"] == 0 else []
        return gaps + [event for event, n in self.events.items() if n == 0]

    def text(self):
        dtypes = list(dict.fromkeys(dtype for _, dtype, _ in self.counts))
        rows = [("kind", "op") + tuple(dtypes)]
        for kind, op in dict.fromkeys((kind, op) for kind, _, op in self.counts):
            cells = [str(self.counts[kind, d, op]) if (kind, d, op) in self.counts else "" for d in dtypes]
            rows.append((kind, op) + tuple(cells))
        names = list(dict.fromkeys(feature for _, feature in self.features))
        more = [("kind",) + tuple(names)]
        for kind in dict.fromkeys(kind for (kind, _), n in self.features.items() if n):
            more.append((kind,) + tuple(str(self.features[kind, f] or "") for f in names))
        events = ", ".join("%s %d" % (name.replace("_", " "), n) for name, n in self.events.items())
        return "\n\n".join([_table(rows), _table(more), events])


def _table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) if i < 1 else cell.rjust(w)
                               for i, (cell, w) in enumerate(zip(row, widths))) for row in rows)
