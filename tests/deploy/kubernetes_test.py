"""deploy/kubernetes: the files fit together, and their containers run a job, as processes (pods.py)."""

import json
import os
import unittest

import harness
import machines
import pods

SECRETS = {"maypole": {"secret": "the cluster's secret of this test"}, "train": {"token": "the job's token of this test"}}
FILES = ["agents.yaml", "coordinator-etcd.yaml", "coordinator.yaml", "job-sidecar.yaml", "job.yaml", "namespace.yaml",
         "networkpolicy.yaml"]


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
                self.assertEqual(security["runAsUser"] == 0, name == "agents.yaml", (name, container["name"]))
                self.assertIn("memory", container["resources"]["limits"])


@unittest.skipIf(machines.available(), machines.available())
class JobTest(unittest.TestCase):
    def setUp(self):
        self.cluster = pods.Cluster(SECRETS)
        self.cluster.__enter__()
        self.addCleanup(self.cluster.__exit__, None)
        self.dir = os.path.join(self.cluster.machines.dir, "job")
        os.mkdir(self.dir)
        os.chmod(self.dir, 0o777)

    def start_coordinator(self):
        (pod,) = self.cluster.start(pods.load("coordinator.yaml"))
        self.cluster.wait_ready(pod)
        return pod

    def job(self, file, program=None, local_size=2):
        """The Job of a file, with the program of the tests."""
        (job,) = pods.load(file)
        (container,) = job["spec"]["template"]["spec"]["containers"]
        container["args"] = program or [harness.PYTHON, os.path.join(self.cluster.image, "tests/programs/where.py"),
                                        self.dir]
        for entry in container["env"]:
            if entry["name"] == "MAYPOLE_LOCAL_SIZE":
                entry["value"] = str(local_size)
        return [job]

    def check(self, size, local_size):
        for rank in range(size):
            with open(os.path.join(self.dir, "rank.%d.json" % rank), encoding="utf-8") as f:
                seen = json.load(f)
            node = rank // local_size
            self.assertEqual({k: seen[k] for k in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size",
                                                   "sum", "host")},
                             {"rank": rank, "size": size, "local_rank": rank % local_size, "local_size": local_size,
                              "cross_rank": node, "cross_size": 2, "sum": size * (size + 1) / 2, "host": "train-%d" % node})

    def test_a_job_of_two_pods_and_the_nodes_agents(self):
        self.start_coordinator()
        agents = self.cluster.start(pods.load("agents.yaml"))
        for pod in agents:
            self.cluster.wait_ready(pod)
        job = self.cluster.start(self.job("job.yaml"))
        for pod in job:
            self.cluster.wait(pod, "ranks", 0)
        self.check(4, 2)
        print(self.cluster.output(job[1], "ranks"))


if __name__ == "__main__":
    unittest.main()
