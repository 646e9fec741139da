"""Hosts on which a job cannot start: each gives one line that says what to do."""

import os
import unittest

import ssh_fixture

REASON = ssh_fixture.available()


@unittest.skipIf(REASON, REASON)
class HostsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.net = ssh_fixture.SshMachines()
        cls.net.__enter__()
        cls.addClassCleanup(cls.net.__exit__)

    def tearDown(self):
        for machine in (0, 1):
            self.net.await_quiet(5, machine)

    def refused(self, argv, status=1, **kwargs):
        """The error of maypolerun, without its name; checks that no rank was started."""
        job = self.net.start(argv + ["sh", "-c", ': >"$MAYPOLE_TEST_DIR/started"'], **kwargs)
        self.assertEqual(job.wait(40), status, job.stderr())
        self.assertFalse(os.path.exists(os.path.join(job.dir, "started")))
        self.assertEqual(job.stdout(), "")
        lines = job.stderr().splitlines()
        for line in lines:
            self.assertTrue(line.startswith("maypolerun: "), line)
        return [line[len("maypolerun: "):] for line in lines]

    def assert_why(self, lines, pattern):
        self.assertEqual(len(lines), 2, lines)
        self.assertRegex(lines[0], pattern)
        self.assertEqual(lines[1], "the job was not started")

    def test_nobody_has_the_address(self):
        self.assert_why(self.refused(["-H", "a:1,10.213.78.77:1"]),
                        r"^10\.213\.78\.77: ssh: .*(No route to host|timed out); "
                        r"the host (cannot be reached: is it up, and is the address right"
                        r"|does not answer: is it up, is the address right, is there a firewall in between)\?")

    def test_no_sshd_listens(self):
        self.assert_why(self.refused(["-H", "a:1,b:1", "-p", "2298"], ssh=False),
                        r"^b: ssh: .*port 2298: Connection refused; no sshd listens there: start it, or name its port "
                        r"\(--ssh-port\)$")

    def test_a_name_that_is_not_known(self):
        self.assert_why(self.refused(["-H", "a:1,nowhere.invalid:1"]),
                        r"^nowhere\.invalid: ssh: Could not resolve hostname .*; its name cannot be resolved here")

    def test_a_key_that_is_not_taken(self):
        key = self.net.make_key("strange_key")
        self.net.write("ssh_config", ssh_fixture.client_config(self.net.dir).replace("user_key", "strange_key"))
        self.addCleanup(self.net.write, "ssh_config", ssh_fixture.client_config(self.net.dir))
        self.assert_why(self.refused(["-H", "a:1,b:1", "-i", key]),
                        r"^b: ssh: root@b: Permission denied \(publickey\)\.; the host accepts none of your keys: "
                        r"install one there \(ssh-copy-id HOST\), or name the right one \(--ssh-identity-file\)$")

    def test_a_host_key_that_has_changed(self):
        self.assertEqual(self.net.start(["-H", "b:1", "true"]).wait(), 0)  # now it is known
        self.net.stop_sshd()
        self.net.make_key("host_key")
        self.net.start_sshd()
        self.addCleanup(os.unlink, self.net.path("known_hosts"))
        self.assert_why(self.refused(["-H", "a:1,b:1"]),
                        r"^b: ssh: Host key verification failed\.; its host key differs from the one in known_hosts: "
                        r"if the change is expected, remove the old one \(ssh-keygen -R HOST\)$")

    def test_maypolerun_is_not_there(self):
        self.assert_why(self.refused(["-H", "a:1,b:1", "--remote-bin", "/no where"]),
                        r"^b: cannot run /no where/maypolerun there \(.*/no where/maypolerun: .*\): install Maypole at "
                        r"the same path, or say where it is \(--remote-bin DIR\)$")

    def test_another_version_is_there(self):
        os.makedirs(self.net.path("old"), exist_ok=True)
        self.net.write("old/maypolerun", "#!/bin/sh\nprintf '\\nmaypole-node protocol=1 version=0.0.9\\n'\n"
                       "cat >/dev/null\n", 0o755)
        self.assert_why(self.refused(["-H", "a:1,b:1", "--remote-bin", self.net.path("old")]),
                        r"^b: maypolerun there is version 0\.0\.9, but here it is \S+: install the same version "
                        r"on all hosts$")

    def test_nonsense_is_there(self):
        os.makedirs(self.net.path("mad"), exist_ok=True)
        self.net.write("mad/maypolerun", "#!/bin/sh\nyes\n", 0o755)
        self.assert_why(self.refused(["-H", "a:1,b:1", "--remote-bin", self.net.path("mad")]),
                        r"^b: a shell that starts there prints too much")

    def test_the_directory_is_not_there(self):
        self.net[0].run(["mkdir", "-p", "/tmp/only on a"])  # each has a /tmp of its own
        self.assert_why(self.refused(["-H", "a:1,b:1"], prefix=["env", "-C", "/tmp/only on a"]),
                        r"^b: cannot enter /tmp/only on a: No such file or directory; ranks run in the directory where "
                        r"maypolerun was started")

    def test_the_program_is_not_there(self):
        job = self.net.start(["-H", "b:1", "/tmp/none"])
        self.assertEqual(job.wait(), 1)
        self.assertRegex(job.stderr(), r"^maypolerun: b: cannot run /tmp/none: No such file or directory\n")

    def test_a_host_that_never_answers_is_named(self):
        os.makedirs(self.net.path("deaf"), exist_ok=True)
        self.net.write("deaf/maypolerun", "#!/bin/sh\ncat >/dev/null\n", 0o755)
        lines = self.refused(["-H", "a:1,b:1", "--remote-bin", self.net.path("deaf"), "--start-timeout", "2"])
        self.assertEqual(lines, ["b (no answer through ssh) not ready after 2 s (--start-timeout); "
                                 "--verbose shows its log"])

    def test_an_interface_that_is_not_there(self):
        lines = self.refused(["-H", "a:1,b:1", "--network-interfaces", "eth7"])
        self.assertRegex(lines[-1], r"^no network interface eth7 with an address \(--network-interfaces\)")

    def test_what_the_command_line_tells(self):
        for argv, said in [
                (["-np", "5", "-H", "a:2,b:2"], "-H has 4 slot(s), but -np is 5: give more slots or start fewer ranks"),
                (["-H", "b:1", "-i", "/none"], "cannot read /none (--ssh-identity-file): No such file or directory"),
                (["--hostfile", "/none"], "cannot read /none: No such file or directory"),
                (["-H", "b:x"], "-H: the slots of b must be a number from 1 to 16384, not 'x'")]:
            self.assertEqual(self.refused(argv, status=2), [said])

    def test_ssh_is_not_installed(self):
        directory = self.net.path("only_sh")
        os.makedirs(directory, exist_ok=True)
        os.symlink("/bin/sh", os.path.join(directory, "sh"))
        lines = self.refused(["-H", "a:1,b:1"], prefix=["env", "PATH=" + directory])
        self.assertEqual(lines, ["ssh: not found on PATH: install it (openssh-client) to start ranks on b"])

    def test_check_build(self):
        job = self.net.start(["--check-build"], ssh=False)
        self.assertEqual(job.wait(), 0)
        self.assertRegex(job.stdout(), r"\n    \[X\] PyTorch \S+ \(of /\S*python3\)\n")
        for row in ("TensorFlow", "MXNet", "MPI", "DDL", "CCL"):
            self.assertRegex(job.stdout(), r"\n    \[ \] %s\b" % row)
        self.assertRegex(job.stdout(), r"\[X\] maypole-worker \(several ranks\): /")


if __name__ == "__main__":
    unittest.main()
