"""The C++ toolchain of --config=aarch64: Debian's cross compiler."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "ACTION_NAMES")
load(
    "@bazel_tools//tools/cpp:cc_toolchain_config_lib.bzl",
    "feature",
    "flag_group",
    "flag_set",
    "tool_path",
    "with_feature_set",
)

_PREFIX = "/usr/bin/aarch64-linux-gnu-"
_TOOLS = ["ar", "cpp", "gcc", "gcov", "ld", "nm", "objdump", "strip"]
_COMPILE = [ACTION_NAMES.c_compile, ACTION_NAMES.cpp_compile, ACTION_NAMES.assemble, ACTION_NAMES.preprocess_assemble]
_LINK = [
    ACTION_NAMES.cpp_link_executable,
    ACTION_NAMES.cpp_link_dynamic_library,
    ACTION_NAMES.cpp_link_nodeps_dynamic_library,
]

def _impl(ctx):
    # As Bazel compiles and links for the machine on which it runs, so that the
    # same bytes come of the same sources.
    flags = feature(
        name = "flags",
        enabled = True,
        flag_sets = [
            flag_set(
                actions = _COMPILE,
                flag_groups = [flag_group(flags = [
                    "-U_FORTIFY_SOURCE",
                    "-fstack-protector",
                    "-fno-omit-frame-pointer",
                    "-fno-canonical-system-headers",
                    "-Wno-builtin-macro-redefined",
                    "-D__DATE__=\"redacted\"",
                    "-D__TIMESTAMP__=\"redacted\"",
                    "-D__TIME__=\"redacted\"",
                    # x86-64 has no fused multiplication and addition, which has
                    # other bits, unless a file asks for it. Nodes of both kinds
                    # have to get the same results.
                    "-ffp-contract=off",
                ])],
            ),
            flag_set(
                actions = _COMPILE,
                flag_groups = [flag_group(flags = [
                    "-O2",
                    "-DNDEBUG",
                    "-D_FORTIFY_SOURCE=1",
                    "-ffunction-sections",
                    "-fdata-sections",
                ])],
                with_features = [with_feature_set(features = ["opt"])],
            ),
            flag_set(
                actions = _LINK,
                flag_groups = [flag_group(flags = [
                    "-Wl,-z,relro,-z,now",
                    # The driver is gcc, which links no C++ library by itself.
                    "-lstdc++",
                    "-lm",
                ])],
            ),
            flag_set(
                actions = _LINK,
                flag_groups = [flag_group(flags = ["-Wl,--gc-sections"])],
                with_features = [with_feature_set(features = ["opt"])],
            ),
        ],
    )
    return cc_common.create_cc_toolchain_config_info(
        ctx = ctx,
        abi_libc_version = "glibc",
        abi_version = "aarch64",
        compiler = "gcc",
        cxx_builtin_include_directories = [
            "/usr/aarch64-linux-gnu/include",
            "/usr/lib/gcc-cross/aarch64-linux-gnu",
        ],
        features = [
            feature(name = "opt"),
            feature(name = "supports_pic", enabled = True),
            flags,
        ],
        host_system_name = "local",
        target_cpu = "aarch64",
        target_libc = "glibc",
        target_system_name = "aarch64-linux-gnu",
        tool_paths = [tool_path(name = t, path = _PREFIX + t) for t in _TOOLS],
        toolchain_identifier = "aarch64-linux-gnu",
    )

aarch64_toolchain_config = rule(
    implementation = _impl,
    provides = [CcToolchainConfigInfo],
)
