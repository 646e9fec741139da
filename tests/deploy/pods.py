"""Runs the pods of Kubernetes manifests as processes, without Kubernetes (needs root).

    with pods.Cluster(secrets={"maypole": {"secret": "..."}}) as cluster:
        (coordinator,) = cluster.start(pods.load("coordinator.yaml"))     # on the machines n0 and n1
        cluster.wait_ready(coordinator)

As in Kubernetes: commands with their $(VARIABLES); environments (the manifest's variables and the image's, no others);
mounts of secrets (links to root's files, as kubelet makes them), of emptyDir and hostPath; users and groups;
capabilities; read-only root file systems; separate processes, mounts, IPC and host name for each container; names of
services; probes. Unlike Kubernetes: no images (each container sees this machine's files), no seccomp, no resource
limits, no network for each pod (the pods of a machine share its network, as with hostNetwork), and so no NetworkPolicy.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from typing import Any, Dict, List, NamedTuple, Optional

import harness
import machines
import yaml

Document = Dict[str, Any]
NODES = ["n0", "n1"]


def load(name: str) -> List[Document]:
    """The documents of a file in deploy/kubernetes."""
    with open(os.path.join(harness.ROOT, "deploy/kubernetes", name), encoding="utf-8") as f:
        return [d for d in yaml.safe_load_all(f) if d is not None]


def set_program(job: Document, *args: str, local_size: int = 1) -> None:
    """Makes a Job of the manifests run another program, with that many ranks in each pod."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container["args"] = list(args)
    for entry in container["env"]:
        if entry["name"] == "MAYPOLE_LOCAL_SIZE":
            entry["value"] = str(local_size)


class Container(NamedTuple):
    name: str
    argv: List[str]
    env: Dict[str, str]
    process: subprocess.Popen
    output: str  # path


class Pod:
    """The machine that it is on, and its containers so far."""

    def __init__(self, name: str, machine: machines.Machine, spec: Document, annotations: Dict[str, str]) -> None:
        self.name, self.machine, self.spec, self.annotations = name, machine, spec, annotations
        self.containers: Dict[str, Container] = {}
        self.directory = ""


class Cluster:
    def __init__(self, secrets: Dict[str, Dict[str, str]]) -> None:
        self.secrets = secrets
        self.pods: List[Pod] = []
        hosts = machines.hosts_of(NODES, [[a] for a in machines.V4])
        # What the cluster's DNS says: of a Service, and of each pod of a StatefulSet.
        addresses = [a.partition("/")[0] for a in machines.V4]
        names = [(addresses[0], "maypole-coordinator"), (addresses[0], "etcd")]
        names += [(a, "maypole-coordinator-%d.maypole-coordinator" % i) for i, a in enumerate(addresses)]
        hosts += "".join("%s %s\n" % pair for pair in names)
        self.machines = machines.Machines(NODES, hosts=[hosts] * 2)

    def __enter__(self) -> "Cluster":
        self.machines.__enter__()
        try:
            # For what containers write besides their volumes.
            self.dir = os.path.join(self.machines.dir, "job")
            os.mkdir(self.dir)
            os.chmod(self.dir, 0o777)
            self.image = os.path.join(self.machines.dir, "image")
            os.rename(harness.public_copy(), self.image)
            shutil.copy(os.path.join(harness.ROOT, "client/python/scripts/maypole-node-ranks"),
                        os.path.join(self.image, "client"))
        except BaseException:
            self.machines.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self.machines.__exit__()

    def logs(self) -> str:
        return "".join("--- %s, %s\n%s" % (pod.name, name, self.output(pod, name)[-3000:])
                       for pod in self.pods for name in pod.containers)

    def start(self, documents: List[Document]) -> List[Pod]:
        """Starts the documents' pods: one of a Deployment, one per machine of a DaemonSet, and the pods of a
        StatefulSet or Job, of which there may be two, one per machine."""
        started = []
        for document in documents:
            kind, spec = document["kind"], document.get("spec", {})
            count = {"Deployment": 1, "StatefulSet": spec.get("replicas"), "DaemonSet": len(NODES),
                     "Job": spec.get("completions")}.get(kind, 0)
            for index in range(count):
                annotations = {"batch.kubernetes.io/job-completion-index": str(index)} if kind == "Job" else {}
                pod = Pod("%s-%d" % (document["metadata"]["name"], index), self.machines[index],
                          spec["template"]["spec"], annotations)
                self._start_pod(pod)
                started.append(pod)
        return started

    def _start_pod(self, pod: Pod) -> None:
        self.pods.append(pod)
        pod.directory = tempfile.mkdtemp(prefix=pod.name + ".", dir=self.machines.dir)
        os.chmod(pod.directory, 0o755)
        for volume in pod.spec.get("volumes", []):
            self._make_volume(pod, volume)
        for container in pod.spec.get("initContainers", []):
            self.start_container(pod, container)
            if container.get("restartPolicy") == "Always":
                self._wait_probe(pod, container, "startupProbe")
            else:
                self.wait(pod, container["name"], 0)
        for container in pod.spec["containers"]:
            self.start_container(pod, container)

    def _volume(self, pod: Pod, name: str) -> str:
        return os.path.join(pod.directory, "volume." + name)

    def _make_volume(self, pod: Pod, volume: Document) -> None:
        path = self._volume(pod, volume["name"])
        if "hostPath" in volume:
            node = os.path.join(self.machines.dir, "node." + pod.machine.name, volume["hostPath"]["path"].lstrip("/"))
            if volume["hostPath"]["type"] == "DirectoryOrCreate":
                os.makedirs(node, mode=0o755, exist_ok=True)
            assert os.path.isdir(node), "%s: there is no %s on the node" % (pod.name, node)
            os.symlink(node, path)
        elif "secret" in volume or "projected" in volume:
            self._write_secret(path, volume, pod.spec.get("securityContext", {}).get("fsGroup"))
        else:
            assert "emptyDir" in volume, volume
            os.mkdir(path)
            os.chmod(path, 0o777)

    def _write_secret(self, path: str, volume: Document, group: Optional[int]) -> None:
        """As kubelet: the name is a link into ..data, a link to a directory of this version."""
        if "projected" in volume:
            mode = volume["projected"]["defaultMode"]
            names = [source["secret"]["name"] for source in volume["projected"]["sources"]]
        else:
            mode, names = volume["secret"]["defaultMode"], [volume["secret"]["secretName"]]
        version = os.path.join(path, "..2026")
        os.makedirs(version)
        os.chmod(path, 0o755)
        for key, text in [item for name in names for item in self.secrets[name].items()]:
            file = os.path.join(version, key)
            with open(file, "w", encoding="utf-8") as f:
                f.write(text)
            os.chmod(file, mode)
            if group is not None:
                os.chown(file, 0, group)
            os.symlink("..data/" + key, os.path.join(path, key))
        os.symlink("..2026", os.path.join(path, "..data"))

    def _environment(self, pod: Pod, container: Document) -> Dict[str, str]:
        env = {}
        for entry in container.get("env", []):
            source = entry.get("valueFrom", {})
            if "secretKeyRef" in source:
                value = self.secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
            elif "fieldRef" in source:
                value = self._field(pod, source["fieldRef"]["fieldPath"])
            else:
                value = entry["value"]
            env[entry["name"]] = expand(value, env)
        return env

    @staticmethod
    def _field(pod: Pod, path: str) -> str:
        fields = {"metadata.name": pod.name, "spec.nodeName": pod.machine.name}
        fields.update({"metadata.annotations['%s']" % name: value for name, value in pod.annotations.items()})
        return fields[path]

    def _image_environment(self) -> Dict[str, str]:
        env = harness.environment(root=self.image)
        return {"PATH": os.path.join(self.image, "client") + os.pathsep + env["PATH"], "PYTHONPATH": env["PYTHONPATH"],
                "MAYPOLE_LIBRARY": env["MAYPOLE_LIBRARY"]}

    def start_container(self, pod: Pod, container: Document) -> None:
        env = self._environment(pod, container)
        argv = [expand(word, env) for word in container.get("command", []) + container.get("args", [])]
        security = dict(pod.spec.get("securityContext", {}), **container.get("securityContext", {}))
        mounts = [(self._volume(pod, m["name"]), m["mountPath"], m.get("readOnly", False))
                  for m in container.get("volumeMounts", [])]
        script = _script(pod.name, mounts, security, argv)
        output = os.path.join(pod.directory, container["name"] + ".log")
        # The pod's processes and mounts are its own.
        command = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc",
                   "sh", "-c", script]
        with open(output, "ab") as f:
            process = pod.machine.start(command, env=dict(self._image_environment(), **env), stdout=f, stderr=f)
        pod.containers[container["name"]] = Container(container["name"], argv, env, process, output)

    def restart(self, pod: Pod, name: str) -> None:
        """As kubelet does for a container that has ended, with restartPolicy OnFailure or Always."""
        self.start_container(pod, next(c for c in pod.spec["containers"] if c["name"] == name))

    def stop(self, pod: Pod, name: str) -> None:
        """As kubelet: SIGTERM to the container's first process, which must end by itself."""
        container = pod.containers[name]
        for pid in harness.descendants(container.process.pid):
            if harness.processes().get(pid, (0, [""]))[1][:1] == container.argv[:1]:
                harness.kill(pid, signal.SIGTERM)
        container.process.wait(timeout=30)

    def output(self, pod: Pod, name: str) -> str:
        with open(pod.containers[name].output, encoding="utf-8", errors="replace") as f:
            return f.read()

    def wait(self, pod: Pod, name: str, status: int, seconds: float = 60) -> None:
        got = pod.containers[name].process.wait(timeout=seconds)
        if got != status:
            raise AssertionError("%s, %s: ended with %d, not %d\n%s" % (pod.name, name, got, status, self.logs()))

    def wait_ready(self, pod: Pod) -> None:
        for container in pod.spec["containers"]:
            self._wait_probe(pod, container, "readinessProbe")

    def _wait_probe(self, pod: Pod, container: Document, name: str) -> None:
        process = pod.containers[container["name"]].process
        probe = container[name]["httpGet"]
        ports = {p["name"]: p["containerPort"] for p in container["ports"]}

        def ready() -> bool:
            if process.poll() is not None:
                raise AssertionError("%s has ended\n%s" % (pod.name, self.logs()))
            return pod.machine.run(["curl", "-sf", "-o", "/dev/null", "http://127.0.0.1:%d%s" % (
                ports[probe["port"]], probe["path"])]).returncode == 0

        harness.wait_until(ready, 20, "%s of %s" % (name, pod.name))


def expand(text: str, env: Dict[str, str]) -> str:
    """$(NAME) of the container's variables; others stay as they are."""
    return re.sub(r"\$\((\w+)\)", lambda m: env.get(m.group(1), m.group(0)), text)


def _script(name: str, mounts: List[Any], security: Document, argv: List[str]) -> str:
    """What a container's first process does before it becomes the command: runs in the pod's namespaces as root."""
    lines = ["hostname " + name, "mount -t tmpfs -o mode=755 none /run"]
    for source, target, _ in mounts:
        assert target.startswith("/run/"), target  # what else is there is this machine's
        lines += ["mkdir -p %s" % target, "mount --bind %s %s" % (source, target)]
    if security.get("readOnlyRootFilesystem"):
        lines += ["mount -o remount,bind,ro /run", "mount -o remount,bind,ro /tmp", "mount -o remount,bind,ro /"]
    lines += ["mount -o remount,bind,ro %s" % target for _, target, read_only in mounts if read_only]
    return " && ".join(lines + ["exec " + shlex.join(_privileges(security) + argv)])


def _privileges(security: Document) -> List[str]:
    user, group = security.get("runAsUser", 0), security.get("runAsGroup", 0)
    assert not (security.get("runAsNonRoot") and user == 0), security
    extra = security.get("fsGroup")
    capabilities = security["capabilities"]
    assert capabilities["drop"] == ["ALL"] and security["allowPrivilegeEscalation"] is False, security
    bounding = ",".join(["-all"] + ["+" + c.lower() for c in capabilities.get("add", [])])
    return ["setpriv", "--reuid=%d" % user, "--regid=%d" % group,
            "--groups=%d" % extra if extra is not None else "--clear-groups",
            "--inh-caps=-all", "--bounding-set=" + bounding, "--no-new-privs"]
