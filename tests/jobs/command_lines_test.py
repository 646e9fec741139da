"""The command lines of all four programs: their common rules, and completion in a real bash."""

import os
import pty
import select
import subprocess
import tempfile
import time
import unittest

import harness

PROGRAMS = {
    "maypole-coordinator": "coordinator/maypole-coordinator",
    "maypole-worker": "worker/maypole-worker",
    "maypolerun": "client/launcher/maypolerun",
    "maypolectl": "client/ctl/maypolectl",
}
INTERNAL = ["--executor", "--control_fd", "--stats_fd", "--tls_fd", "--node-service", "--node-of-job",
            "--function-directory", "--complete "]
PATIENCE = 30  # seconds


def run(program, *args):
    return subprocess.run([os.path.join(harness.ROOT, PROGRAMS[program]), *args], capture_output=True, text=True,
                          timeout=PATIENCE, env=harness.environment())


class CommandLinesTest(unittest.TestCase):
    def test_help_has_defaults_and_nothing_internal(self):
        default = {"maypole-coordinator": "[default: 127.0.0.1:0]", "maypole-worker": "[default: 1048576]",
                   "maypolerun": "[default: 1]", "maypolectl": "[default: 127.0.0.1:4001]"}
        for program in PROGRAMS:
            for word in ["--help", "-help", "-h"]:
                with self.subTest(program=program, word=word):
                    done = run(program, word)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                    self.assertTrue(done.stdout.startswith(program + ": "))
                    self.assertIn(default[program], " ".join(done.stdout.split()))
                    self.assertLessEqual(max(map(len, done.stdout.splitlines())), 80)
                    for name in INTERNAL:
                        self.assertNotIn(name, done.stdout)

    def test_version(self):
        for program in PROGRAMS:
            for word in ["--version", "-version", "-v"]:
                done = run(program, word)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertRegex(done.stdout, r"^%s \d+\.\d+\.\d+\n$" % program)

    def test_a_wrong_option_is_one_line_and_status_2(self):
        for program, wrong, expected in [
                ("maypole-coordinator", ["--lisetn=x"],
                 "there is no flag '--lisetn'; did you mean '--listen'? See --help"),
                ("maypole-coordinator", ["--start-timeout=soon"],
                 "--start_timeout: expected a time such as 3s or 500ms, more than 0 and at most 8760h, got \"soon\""),
                ("maypole-worker", ["--network_timout=3s"],
                 "there is no flag '--network_timout'; did you mean '--network_timeout'? See --help"),
                ("maypole-worker", ["--slots", "x"],
                 "--slots: expected an integer from 64 to 16384, got \"x\""),
                ("maypolerun", ["-npp", "2"], "there is no flag '-npp'; did you mean '-np'? See --help"),
                ("maypolerun", ["-np", "x", "true"], "-np: expected an integer from 1 to 16384, got \"x\""),
                ("maypolectl", ["--jsno"], "there is no flag '--jsno'; did you mean '--json'? See --help"),
                ("maypolectl", ["evnets"], "there is no command 'evnets'; did you mean 'events'? See --help")]:
            with self.subTest(program=program, wrong=wrong):
                done = run(program, *wrong)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertEqual(done.stderr, "%s: %s\n" % (program, expected))

    def test_daemons_take_all_spellings(self):
        # The last flag is wrong, and its error shows that those before it were read.
        with tempfile.NamedTemporaryFile("w") as flags:
            flags.write("# flags\n--ring_depth=2\n")
            flags.flush()
            for spelling in [["--chunk_bytes=65536"], ["--chunk_bytes", "65536"], ["-chunk_bytes=65536"],
                             ["-chunk_bytes", "65536"], ["--chunk-bytes=0x10000"], ["--resume_timeout=500ms"],
                             ["--metrics="], ["--flagfile=" + flags.name], ["-flagfile", flags.name]]:
                done = run("maypole-worker", "-coordinator=h:1", *spelling, "--node=a b")
                self.assertEqual(done.returncode, 2)
                self.assertIn("'a b'", done.stderr, spelling)

    def test_maypolerun_takes_all_spellings(self):
        for spelling in [["-np", "1"], ["-np1"], ["-n1"], ["-n", "1"], ["--np=1"], ["--num-proc", "1"],
                         ["-H", "localhost:1"], ["--hosts=localhost:1"], ["-H", "localhost"]]:
            done = run("maypolerun", *spelling, "echo", "-np", "7", "--help")
            self.assertEqual((done.returncode, done.stdout), (0, "-np 7 --help\n"), spelling + [done.stderr])

    def test_maypolerun_passes_flags_on_to_its_agents(self):
        for option, said in [("--agent-flag=--nosuch=1", "maypole-worker: there is no flag '--nosuch'"),
                             ("--arena-bytes=100", "arena bytes must be a multiple of 4096")]:
            done = run("maypolerun", "-np", "2", option, "true")
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(said, done.stderr)


class CompletionTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        for program, path in PROGRAMS.items():
            os.symlink(os.path.join(harness.ROOT, path), os.path.join(self.directory, program))
        open(os.path.join(self.directory, "certificate.pem"), "w").close()
        self.env = harness.environment({"PATH": self.directory + ":" + os.environ["PATH"], "TERM": "dumb",
                                        "INPUTRC": "/dev/null", "HISTFILE": "/dev/null", "PS1": "$ "})

    def bash(self, script):
        done = subprocess.run(["bash", "--norc", "--noprofile", "-c", script], capture_output=True, text=True,
                              timeout=PATIENCE, env=self.env, cwd=self.directory)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def offered(self, program, *words):
        """The completions that bash's function offers for the last word."""
        quoted = " ".join("'%s'" % word for word in (program,) + words)
        return self.bash("eval \"$(%s --completion=bash)\"; COMP_WORDS=(%s) COMP_CWORD=%d; _%s %s; "
                         "printf '%%s\\n' \"${COMPREPLY[@]}\""
                         % (program, quoted, len(words), program.replace("-", "_"), program)).split()

    def test_the_script_defines_a_completion(self):
        for program in PROGRAMS:
            self.assertEqual(self.bash("eval \"$(%s --completion bash)\"; complete -p %s" % (program, program)),
                             "complete -F _%s %s\n" % (program.replace("-", "_"), program))

    def test_it_offers_what_the_program_takes(self):
        self.assertEqual(self.offered("maypole-worker", "--network"),
                         ["--network", "--network_connections", "--network_levels", "--network_congestion",
                          "--network_encryption", "--network_timeout"])
        self.assertEqual(self.offered("maypole-coordinator", "--log_level", "d"), ["debug"])
        self.assertEqual(self.offered("maypole-coordinator", "--log_level", "=", "d"), ["debug"])
        self.assertEqual(self.offered("maypole-coordinator", "--tls_ca", "cert"), ["certificate.pem"])
        self.assertEqual(self.offered("maypolectl", ""), ["status", "jobs", "ranks", "events", "abort", "drain"])
        self.assertEqual(self.offered("maypolectl", "drain", "--w"), ["--wait"])
        self.assertIn("--hostfile", self.offered("maypolerun", "--host"))
        self.assertIn("bash", self.offered("maypolerun", "-np", "2", "bas"))
        self.assertEqual(self.offered("maypolerun", "-np", "2", "cat", "cert"), ["certificate.pem"])
        self.assertNotIn("--executor", self.offered("maypole-worker", ""))

    def test_tab_in_a_terminal(self):
        process, terminal = pty.fork()
        if process == 0:
            os.chdir(self.directory)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], self.env)
        self.addCleanup(os.waitpid, process, 0)
        self.addCleanup(os.close, terminal)  # bash is hung up on
        self.type(terminal, "bind 'set enable-bracketed-paste off'\n")
        for program in PROGRAMS:
            self.type(terminal, 'eval "$(%s --completion=bash)"\n' % program)
        self.type(terminal, "echo rea''dy\n", "ready")
        for typed, shown in [("maypolerun --outp\t", "--output-filename"),
                             ("maypole-worker --log_level=de\t", "--log_level=debug"),
                             ("maypole-coordinator --tls_cert certi\t", "certificate.pem"),
                             ("maypolectl dr\t", "drain")]:
            self.type(terminal, typed, shown)
            self.type(terminal, "\x15echo nex''t\n", "next")  # Ctrl-U

    def type(self, terminal, text, expected=None):
        """Types the text, and waits until the terminal shows what is expected."""
        os.write(terminal, text.encode())
        shown = b""
        deadline = time.monotonic() + PATIENCE
        while expected is not None and expected.encode() not in shown:
            left = deadline - time.monotonic()
            self.assertTrue(left > 0 and select.select([terminal], [], [], left)[0], (expected, shown))
            shown += os.read(terminal, 65536)


if __name__ == "__main__":
    unittest.main()
