"""sanitized_test: a program built with gcc's asan and ubsan, run as a test.

It has kill points too: the simulation needs them, and so what it shares with the
fuzzers is compiled once.
"""

_FLAGS = ["-fsanitize=address,undefined"]

def _on_impl(settings, _attr):
    return {
        # -O1: instrumented code takes gcc half as long again with -O2.
        "//command_line_option:copt": settings["//command_line_option:copt"] + _FLAGS + [
            "-O1",
            "-fno-omit-frame-pointer",
            "-fno-sanitize-recover=all",
            "-g1",
        ],
        "//command_line_option:linkopt": settings["//command_line_option:linkopt"] + _FLAGS,
        "//command_line_option:strip": "never",
        "//common:kill_points": True,
    }

_OPTIONS = [
    "//command_line_option:copt",
    "//command_line_option:linkopt",
]

_on = transition(
    implementation = _on_impl,
    inputs = _OPTIONS,
    outputs = _OPTIONS + ["//command_line_option:strip", "//common:kill_points"],
)

def _impl(ctx):
    program = ctx.attr.program[0][DefaultInfo].files_to_run.executable
    copy = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(output = copy, target_file = program, is_executable = True)
    return [DefaultInfo(
        executable = copy,
        runfiles = ctx.runfiles(files = [program] + ctx.files.data),
    )]

sanitized_test = rule(
    implementation = _impl,
    attrs = {
        "program": attr.label(cfg = _on, executable = True, mandatory = True),
        "data": attr.label_list(allow_files = True),
        "_allowlist_function_transition": attr.label(
            default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
        ),
    },
    test = True,
)
