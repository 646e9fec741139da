"""deploy/kubernetes: the files fit together, and their containers run a job, as processes (pods.py)."""

import json
import os
import shutil
import signal
import unittest

import harness
import machines
import pods

SECRETS = {"maypole": {"secret": "the cluster's secret of this test"},
           "train": {"token": "the job's token of this test"}}
FILES = ["agents-etcd.yaml", "agents.yaml", "coordinator-etcd.yaml", "coordinator.yaml", "job-sidecar.yaml", "job.yaml",
         "namespace.yaml", "networkpolicy.yaml"]


class FilesTest(unittest.TestCase):
    def setUp(self):
        self.documents = {name: pods.load(name) for name in FILES}

    def pod_specs(self):
        for name in FILES:
            for document in self.documents[name]:
                if "template" in document.get("spec", {}):
                    yield name, document, document["spec"]["template"]

    def test_all_files_are_known(self):
        found = sorted(n for n in os.listdir(os.path.join(harness.ROOT, "deploy/kubernetes")) if n.endswith(".yaml"))
        self.assertEqual(found, FILES)

    def test_every_mount_has_a_volume_and_every_port_that_is_named_exists(self):
        for name, _, template in self.pod_specs():
            spec = template["spec"]
            volumes = {v["name"] for v in spec.get("volumes", [])}
            for container in spec.get("initContainers", []) + spec["containers"]:
                with self.subTest(name, container=container["name"]):
                    self.assertLessEqual({m["name"] for m in container["volumeMounts"]}, volumes)
                    ports = {p["name"] for p in container.get("ports", [])}
                    probes = [container[p]["httpGet"]["port"] for p in container if p.endswith("Probe")]
                    self.assertLessEqual(set(probes), ports)

    def test_selectors_find_their_pods(self):
        labels = [(document["kind"], template["metadata"]["labels"]) for _, document, template in self.pod_specs()]

        def found(selector):
            return [kind for kind, own in labels if selector.items() <= own.items()]

        for _, document, template in self.pod_specs():
            if document["kind"] != "Job":
                self.assertLessEqual(document["spec"]["selector"]["matchLabels"].items(),
                                     template["metadata"]["labels"].items())
        (service,) = (d for d in self.documents["coordinator.yaml"] if d["kind"] == "Service")
        self.assertEqual(sorted(set(found(service["spec"]["selector"]))), ["Deployment", "StatefulSet"])
        policies = {d["metadata"]["name"]: d["spec"] for d in self.documents["networkpolicy.yaml"]}
        for name, kinds in (("maypole-coordinator", {"Deployment", "StatefulSet"}), ("maypole-agent", {"DaemonSet"}),
                            ("maypole-sidecar", {"Job"})):
            self.assertEqual(set(found(policies[name]["podSelector"]["matchLabels"])), kinds)
        senders = policies["maypole-coordinator"]["ingress"][0]["from"]
        self.assertEqual({kind for s in senders for kind in found(s["podSelector"]["matchLabels"])},
                         {"Deployment", "StatefulSet", "DaemonSet", "Job"})

    def test_only_agents_of_the_node_are_root(self):
        for name, _, template in self.pod_specs():
            spec = template["spec"]
            for container in spec.get("initContainers", []) + spec["containers"]:
                security = dict(spec.get("securityContext", {}), **container["securityContext"])
                self.assertEqual(security["runAsUser"] == 0, name.startswith("agents"), (name, container["name"]))
                self.assertIn("memory", container["resources"]["limits"])


@unittest.skipIf(machines.available(), machines.available())
class JobTest(unittest.TestCase):
    def setUp(self):
        self.cluster = pods.Cluster(SECRETS)
        self.cluster.__enter__()
        self.addCleanup(self.cluster.__exit__)
        self.dir = self.cluster.dir

    def start(self, *files):
        """Pods of these files, all of which are then ready."""
        started = [pod for name in files for pod in self.cluster.start(pods.load(name))]
        for pod in started:
            self.cluster.wait_ready(pod)
        return started

    def start_job(self, file, *args, local_size=2):
        """The pods of the Job of a file, with the program of the tests."""
        (job,) = pods.load(file)
        program = os.path.join(self.cluster.image, "tests/programs/where.py")
        pods.set_program(job, harness.PYTHON, program, self.dir, *args, local_size=local_size)
        return self.cluster.start([job])

    def check_ends(self, job, local_size=2):
        for pod in job:
            self.cluster.wait(pod, "ranks", 0)
        size = len(job) * local_size
        for rank in range(size):
            with open(os.path.join(self.dir, "rank.%d.json" % rank), encoding="utf-8") as f:
                seen = json.load(f)
            node = rank // local_size
            expected = {"rank": rank, "size": size, "local_rank": rank % local_size, "local_size": local_size,
                        "cross_rank": node, "cross_size": 2, "sum": size * (size + 1) / 2, "host": "train-%d" % node}
            self.assertEqual({key: seen[key] for key in expected}, expected)
        print("".join(self.cluster.output(pod, "ranks") for pod in job))

    def wait_here(self, size):
        """All ranks are in the job, and wait for the file `go`."""
        harness.wait_until(lambda: all(os.path.exists(os.path.join(self.dir, "here.%d" % r)) for r in range(size)), 30,
                           "all ranks to be there")

    def go(self):
        with open(os.path.join(self.dir, "go"), "w", encoding="utf-8"):
            pass

    def test_the_nodes_agents(self):
        self.start("coordinator.yaml", "agents.yaml")
        self.check_ends(self.start_job("job.yaml"))

    def test_an_agent_beside_the_ranks(self):
        self.start("coordinator.yaml")
        self.check_ends(self.start_job("job-sidecar.yaml", local_size=1), local_size=1)

    def test_a_rank_is_killed_and_all_pods_are_started_again(self):
        self.start("coordinator.yaml", "agents.yaml")
        job = self.start_job("job.yaml", "go", local_size=1)
        self.wait_here(2)
        container = job[1].containers["ranks"]
        (rank,) = [pid for pid in harness.descendants(container.process.pid)
                   if harness.processes()[pid][1][:2] == container.argv[1:3]]
        os.kill(rank, signal.SIGKILL)
        self.cluster.wait(job[1], "ranks", 137)
        self.go()
        self.cluster.wait(job[0], "ranks", 1)
        self.assertRegex(self.cluster.output(job[0], "ranks"), r"rank 1 .*its connection closed without shutdown")
        for pod in job:
            self.cluster.restart(pod, "ranks")
        self.check_ends(job, local_size=1)

    @unittest.skipIf(shutil.which("etcd", path="/usr/bin:/bin") is None, "etcd is not installed (etcd-server)")
    def test_the_coordinator_that_leads_ends(self):
        n0 = self.cluster.machines[0]
        n0.start(["etcd", "--data-dir", self.dir + "/etcd", "--listen-client-urls", "http://0.0.0.0:2379",
                  "--advertise-client-urls", "http://etcd:2379", "--listen-peer-urls", "http://127.0.0.1:2380",
                  "--log-level", "error"])
        elected = pods.load("coordinator-etcd.yaml")
        elected[-1]["spec"]["replicas"] = 2  # the third would need a third machine
        coordinators = self.cluster.start(elected)
        for pod in coordinators:
            self.cluster.wait_ready(pod)
        self.start("agents-etcd.yaml")
        job = self.start_job("job.yaml", "go", local_size=1)
        self.wait_here(2)
        leader = next(pod for pod in coordinators if "event=leading" in self.cluster.output(pod, "coordinator"))
        self.cluster.stop(leader, "coordinator")
        self.go()
        self.check_ends(job, local_size=1)


if __name__ == "__main__":
    unittest.main()
