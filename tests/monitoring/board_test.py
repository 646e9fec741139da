"""The Grafana board and the alert rules as files: promtool and Grafana's schema accept them; all their metrics exist.

What the queries return from a real job is in prometheus_test.
"""

import json
import os
import re
import subprocess
import tempfile
import unittest

import environments
import harness
import prometheus_server
import queries

UNITS = {"none", "short", "ops", "Bps", "bytes", "percentunit", "s"}
VARIABLE = {"type": "prometheus", "uid": "${datasource}"}
# Prometheus' own fields of an annotation, which the schema does not have.
NOT_IN_SCHEMA = ["/annotations/list/0/titleFormat", "/annotations/list/0/textFormat"]


class BoardTest(unittest.TestCase):
    def setUp(self):
        self.board = queries.board()
        self.panels = queries.panels(self.board)

    def test_panels_are_described_and_have_ids_of_their_own(self):
        rows = [panel for panel in self.board["panels"] if panel["type"] == "row"]
        self.assertGreater(len(self.panels), 40)
        ids = [panel["id"] for panel in self.panels + rows]
        self.assertEqual(len(set(ids)), len(ids))
        titles = [panel["title"] for panel in self.panels + rows]
        self.assertEqual(len(set(titles)), len(titles))
        for panel in self.panels:
            self.assertTrue(panel["description"], panel["title"])
            self.assertIn(panel["fieldConfig"]["defaults"]["unit"], UNITS, panel["title"])
            self.assertIsNone(panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"], panel["title"])
            self.assertEqual(len({t["refId"] for t in panel["targets"]}), len(panel["targets"]))

    def test_no_panel_covers_another(self):
        visible = self.board["panels"]
        for row in [[]] + [panel.get("panels", []) for panel in visible]:
            # Those below an opened row move down.
            taken = set()
            for panel in row or visible:
                place = panel["gridPos"]
                self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
                cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                         for y in range(place["y"], place["y"] + place["h"])}
                self.assertFalse(taken & cells, panel["title"])
                taken |= cells

    def test_all_queries_go_to_the_chosen_server(self):
        names = [variable["name"] for variable in self.board["templating"]["list"]]
        self.assertEqual(names, ["datasource", "job", "node"])
        for part in self.panels + [t for panel in self.panels for t in panel["targets"]] + \
                self.board["templating"]["list"][1:] + self.board["annotations"]["list"]:
            self.assertEqual(part["datasource"], VARIABLE, part)

    def test_the_board_shows_every_metric(self):
        shown = set()
        for panel in self.panels:
            for target in panel["targets"]:
                shown |= queries.metrics_in(target["expr"])
        self.assertEqual(shown, {name for part in queries.documented().values() for name in part})

    def misfits(self, board):
        program = os.path.join(harness.ROOT, "tests", "monitoring", "grafana_schema.py")
        done = subprocess.run([environments.python("grafana-schema"), program], input=json.dumps(board),
                              capture_output=True, text=True, timeout=60, env=harness.environment())
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_grafanas_schema(self):
        self.assertEqual(self.misfits(self.board), NOT_IN_SCHEMA)
        # It would find a wrong value, and a wrong name.
        custom = next(panel for panel in self.panels if panel["type"] == "timeseries")["fieldConfig"]["defaults"]["custom"]
        custom.update(drawStyle="lin", lineWide=1)
        self.assertEqual({place.rpartition("/")[2] for place in self.misfits(self.board)},
                         {"draw_style", "lineWide", "titleFormat", "textFormat"})


class RulesTest(unittest.TestCase):
    def test_queries_and_alerts_use_metrics_that_exist(self):
        names = {name for part in queries.documented().values() for name in part}
        for found in (queries.of_page(), queries.of_alerts().values()):
            used = queries.metrics_in("\n".join(found))
            self.assertGreater(len(used), 5)
            self.assertEqual(used - names, set())

    def test_every_alert_says_what_to_do_and_fires_in_a_test(self):
        with open(os.path.join(harness.ROOT, "tests", "monitoring", "alerts_test.yml")) as f:
            tests = f.read()
        fires = set(re.findall(r"alertname: (\w+)\n +exp_alerts:\n", tests))
        self.assertEqual(fires, set(queries.of_alerts()))
        with open(os.path.join(harness.ROOT, "deploy", "prometheus", "alerts.yml")) as f:
            text = f.read()
        for word in ("severity:", "summary:", "description:"):
            self.assertEqual(len(re.findall(word, text)), len(fires), word)


@unittest.skipIf(prometheus_server.missing(), prometheus_server.missing())
class PromtoolTest(unittest.TestCase):
    def promtool(self, *arguments):
        done = subprocess.run([prometheus_server.tool("promtool")] + list(arguments), capture_output=True, text=True,
                              timeout=60, env=harness.environment())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_configuration_is_sound(self):
        path = os.path.join(harness.ROOT, "deploy", "prometheus", "prometheus.yml")
        self.assertRegex(self.promtool("check", "config", path), "SUCCESS: [1-9][0-9]* rules found")

    def test_alerts_fire(self):
        self.promtool("test", "rules", os.path.join(harness.ROOT, "tests", "monitoring", "alerts_test.yml"))

    def test_all_queries_of_the_board_are_promql(self):
        board = queries.board()
        texts = [t["expr"] for panel in queries.panels(board) for t in panel["targets"]]
        texts += [annotation["expr"] for annotation in board["annotations"]["list"]]
        rules = [{"record": "q%d" % i, "expr": queries.filled(text)} for i, text in enumerate(texts)]
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as f:
            json.dump({"groups": [{"name": "board", "rules": rules}]}, f)  # which is YAML
            f.flush()
            self.assertIn("SUCCESS: %d rules found" % len(texts), self.promtool("check", "rules", f.name))


if __name__ == "__main__":
    unittest.main()
