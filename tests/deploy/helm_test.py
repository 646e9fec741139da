"""deploy/helm/maypole: a real Helm renders the chart, and Kubernetes' own schemas accept what it renders."""

import os
import shutil
import subprocess
import tempfile
import unittest

import harness
import machines
import pods
import pypi
import yaml

DEPLOY = os.path.join(harness.ROOT, "deploy")
# The oldest version that the chart is for, and the newest one that the package knows.
VERSIONS = ["1.29", "1.37"]


class HelmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.helm = pypi.helm()
        cls.dir = tempfile.mkdtemp(prefix="mph", dir="/tmp")
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        # helm reads no links to files outside of the chart.
        cls.chart = os.path.join(cls.dir, "maypole")
        shutil.copytree(os.path.join(DEPLOY, "helm/maypole"), cls.chart)

    def helm_run(self, *args):
        env = {"HOME": self.dir, "PATH": "/usr/bin:/bin"}
        return subprocess.run([self.helm, *args], env=env, capture_output=True, text=True, timeout=60)

    def render(self, *values, release="maypole"):
        args = [word for value in values for word in ("--set", value)]
        done = self.helm_run("template", release, self.chart, *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def validate(self, text):
        path = os.path.join(self.dir, "rendered.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        for version in VERSIONS:
            done = subprocess.run([pypi.kubernetes_validate(), "--strict", "--quiet", "-k", version, path],
                                  capture_output=True, text=True, timeout=120)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""), version)
        return [d for d in yaml.safe_load_all(text) if d is not None]

    def test_lint(self):
        done = self.helm_run("lint", "--strict", self.chart)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_plain_manifests_are_what_it_renders(self):
        out = os.path.join(self.dir, "rendered")
        os.makedirs(os.path.join(self.dir, "deploy/kubernetes"))
        os.mkdir(out)
        shutil.copy(os.path.join(DEPLOY, "kubernetes/render.sh"), os.path.join(self.dir, "deploy/kubernetes"))
        shutil.copytree(self.chart, os.path.join(self.dir, "deploy/helm/maypole"))
        subprocess.run([os.path.join(self.dir, "deploy/kubernetes/render.sh"), out], check=True,
                       env={"HELM": self.helm, "HOME": self.dir, "PATH": "/usr/bin:/bin"}, timeout=120)
        for name in sorted(os.listdir(out)):
            with open(os.path.join(out, name), encoding="utf-8") as a, \
                    open(os.path.join(DEPLOY, "kubernetes", name), encoding="utf-8") as b:
                text = b.read()
                self.assertEqual(a.read(), text, name + ": run deploy/kubernetes/render.sh")
            self.validate(text)
        with open(os.path.join(DEPLOY, "kubernetes/namespace.yaml"), encoding="utf-8") as f:
            self.validate(f.read())

    def test_all_values(self):
        documents = self.validate(self.render(
            "image.tag=9,imagePullSecrets[0].name=registry,secretName=s", "coordinator.replicas=3",
            "coordinator.etcd={e1:2379,e2:2379},coordinator.extraArgs={--log_hide_time}",
            "agents.hostNetwork=true,agents.extraArgs={--ring_depth=4},agents.socketDirectory=/var/lib/maypole",
            "agents.tolerations[0].key=gpu,agents.tolerations[0].operator=Exists,agents.nodeSelector.kind=gpu",
            "coordinator.tolerations[0].key=gpu,coordinator.tolerations[0].operator=Exists",
            "coordinator.nodeSelector.kind=cpu,tls.enabled=true,job.enabled=true,job.nodes=5,job.ranksPerNode=8",
            release="other"))
        kinds = {d["kind"]: d for d in documents}
        self.assertEqual(sorted(kinds), ["DaemonSet", "Job", "NetworkPolicy", "Service", "StatefulSet"])
        (agent,) = kinds["DaemonSet"]["spec"]["template"]["spec"]["containers"]
        self.assertEqual(agent["image"], "maypole:9")
        self.assertEqual(agent["args"], [
            "--coordinator=" + ",".join("other-coordinator-%d.other-coordinator:4001" % i for i in range(3)),
            "--node=$(NODE_NAME)", "--socket=/var/lib/maypole/agent.sock", "--metrics=0.0.0.0:9402",
            "--secret_file=/run/secrets/maypole/secret", "--tls_ca=/run/secrets/maypole/ca.pem",
            "--tls_cert=/run/secrets/maypole/node.pem", "--tls_key=/run/secrets/maypole/node.key", "--ring_depth=4"])
        (ranks,) = kinds["Job"]["spec"]["template"]["spec"]["containers"]
        env = {e["name"]: e.get("value") for e in ranks["env"]}
        self.assertEqual((env["MAYPOLE_CROSS_SIZE"], env["MAYPOLE_LOCAL_SIZE"], env["MAYPOLE_AGENT"]),
                         ("5", "8", "/var/lib/maypole/agent.sock"))

    def test_nothing_but_a_sidecar_job(self):
        documents = self.validate(self.render("job.enabled=true,job.sidecar=true,agents.enabled=false,tls.enabled=true",
                                              "networkPolicy.enabled=false"))
        self.assertEqual([d["kind"] for d in documents], ["Service", "Deployment", "Job"])

    def test_several_coordinators_need_etcd(self):
        done = self.helm_run("template", "maypole", self.chart, "--set", "coordinator.replicas=2")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("several coordinators need coordinator.etcd", done.stderr)


@unittest.skipIf(machines.available(), machines.available())
class TlsTest(unittest.TestCase):
    """What the chart renders with certificates runs a job, as processes (pods.py)."""

    def secrets(self):
        certs = tempfile.mkdtemp(prefix="mph", dir="/tmp")
        self.addCleanup(shutil.rmtree, certs)
        subprocess.run([os.path.join(DEPLOY, "make-certs.sh"), certs, "maypole-coordinator"], check=True,
                       capture_output=True, timeout=60)

        def files(*names):
            found = {}
            for name in names:
                with open(os.path.join(certs, name), encoding="utf-8") as f:
                    found[name] = f.read()
            return found

        return {"maypole": {"secret": "the cluster's secret of this test"},
                "train": {"token": "the token of this test"},
                "maypole-coordinator-tls": files("ca.pem", "coordinator.pem", "coordinator.key"),
                "maypole-node-tls": files("ca.pem", "node.pem", "node.key")}

    def test_a_job(self):
        chart = tempfile.mkdtemp(prefix="mph", dir="/tmp")
        self.addCleanup(shutil.rmtree, chart)
        shutil.copytree(os.path.join(DEPLOY, "helm/maypole"), chart + "/maypole")
        for sidecar in ("false", "true"):
            text = subprocess.run([pypi.helm(), "template", "maypole", chart + "/maypole", "--set",
                                   "tls.enabled=true,job.enabled=true,job.sidecar=%s,agents.enabled=%s" %
                                   (sidecar, "true" if sidecar == "false" else "false")], env={"HOME": chart},
                                  check=True, capture_output=True, text=True).stdout
            documents = {d["kind"]: d for d in yaml.safe_load_all(text) if d is not None}
            with self.subTest(sidecar=sidecar), pods.Cluster(self.secrets()) as cluster:
                for kind in ("Deployment", "DaemonSet"):
                    for pod in cluster.start([documents[kind]] if kind in documents else []):
                        cluster.wait_ready(pod)
                job = documents["Job"]
                pods.set_program(job, harness.PYTHON, cluster.image + "/tests/programs/where.py", cluster.dir)
                for index, pod in enumerate(cluster.start([job])):
                    cluster.wait(pod, "ranks", 0)
                    self.assertEqual(cluster.output(pod, "ranks").strip(),
                                     "rank %d of 2: local 0 of 1, node %d of 2: sum 3" % (index, index))


if __name__ == "__main__":
    unittest.main()
