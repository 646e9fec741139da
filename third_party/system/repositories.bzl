"""Libraries that come from Debian packages."""

load(":debian_root.bzl", "debian_root")
load(":debian_source.bzl", "debian_source")
load(":pkg_config.bzl", "pkg_config_repository")
load(":system_repository.bzl", "system_repository")

def system_libraries():
    """Declares every system library."""
    system_repository(
        name = "com_google_protobuf",
        build_file = "@//third_party/system:protobuf.BUILD",
        package = "libprotobuf-dev protobuf-compiler",
        paths = ["bin/protoc", "include/google/protobuf"],
    )
    system_repository(
        name = "com_github_grpc_grpc",
        build_file = "@//third_party/system:grpc.BUILD",
        package = "libgrpc++-dev protobuf-compiler-grpc",
        paths = ["bin/grpc_cpp_plugin", "include/grpc", "include/grpcpp"],
    )
    system_repository(
        name = "com_google_googletest",
        build_file = "@//third_party/system:googletest.BUILD",
        package = "libgtest-dev libgmock-dev googletest",
        paths = [
            "include/gtest",
            "include/gmock",
            "src/googletest/googletest/src",
            "src/googletest/googlemock/src",
        ],
    )
    system_repository(
        name = "com_github_google_benchmark",
        build_file = "@//third_party/system:benchmark.BUILD",
        package = "libbenchmark-dev",
        paths = ["include/benchmark"],
    )
    system_repository(
        name = "com_github_gloo",
        build_file = "@//third_party/system:gloo.BUILD",
        package = "libgloo-dev",
        paths = ["include/gloo"],
    )
    system_repository(
        name = "com_github_jupp0r_prometheus_cpp",
        build_file = "@//third_party/system:prometheus_cpp.BUILD",
        package = "prometheus-cpp-dev",
        paths = ["include/prometheus"],
    )
    debian_source(
        name = "prometheus_cpp_source",
        build_file = "@//third_party/system:prometheus_cpp_source.BUILD",
        delete = ["BUILD.bazel", "core/BUILD.bazel"],
        package = "prometheus-cpp-dev",
        sha256 = {"1.0.1": "593e028d401d3298eada804d252bc38d8cab3ea1c9e88bcd72095281f85e6d16"},
        source = "prometheus-cpp",
    )
    system_repository(
        name = "com_github_gabime_spdlog",
        build_file = "@//third_party/system:spdlog.BUILD",
        package = "libspdlog-dev",
        paths = ["include/spdlog", "include/fmt"],
    )
    system_repository(
        name = "com_github_cliutils_cli11",
        build_file = "@//third_party/system:cli11.BUILD",
        package = "libcli11-dev",
        paths = ["include/CLI"],
    )
    system_repository(
        name = "com_github_jbeder_yaml_cpp",
        build_file = "@//third_party/system:yaml_cpp.BUILD",
        package = "libyaml-cpp-dev",
        paths = ["include/yaml-cpp"],
    )
    system_repository(
        name = "org_openssl",
        build_file = "@//third_party/system:openssl.BUILD",
        package = "libssl-dev",
        paths = ["include/openssl", "include/x86_64-linux-gnu/openssl"],
    )

    system_repository(
        name = "org_libevent",
        build_file = "@//third_party/system:libevent.BUILD",
        package = "libevent-dev",
        paths = ["include/event2"],
    )
    system_repository(
        name = "com_github_nlohmann_json",
        build_file = "@//third_party/system:nlohmann_json.BUILD",
        package = "nlohmann-json3-dev",
        paths = ["include/nlohmann"],
    )
    system_repository(
        name = "org_chartjs",
        build_file = "@//third_party/system:chart_js.BUILD",
        package = "libjs-chart.js",
        paths = ["share/javascript/chart.js"],
    )

    # For tests/bench only: a peer that Maypole is compared with.
    system_repository(
        name = "org_open_mpi",
        build_file = "@//third_party/system:openmpi.BUILD",
        package = "libopenmpi-dev",
        paths = ["lib/x86_64-linux-gnu/openmpi/include"],
    )

    system_repository(
        name = "org_pmix",
        build_file = "@//third_party/system:pmix.BUILD",
        package = "libpmix-dev",
        paths = ["lib/x86_64-linux-gnu/pmix2/include"],
    )

    system_repository(
        name = "com_github_chriskohlhoff_asio",
        build_file = "@//third_party/system:asio.BUILD",
        package = "libasio-dev",
        paths = ["include/asio", "include/asio.hpp"],
    )

    system_repository(
        name = "com_github_google_highway",
        build_file = "@//third_party/system:highway.BUILD",
        package = "libhwy-dev",
        paths = ["include/hwy"],
    )

    system_repository(
        name = "org_openucx_ucx",
        build_file = "@//third_party/system:ucx.BUILD",
        package = "libucx-dev",
        paths = ["include/ucm", "include/ucp", "include/ucs"],
    )

    # Abseil is some sixty small libraries; pkg-config knows which need which.
    pkg_config_repository(
        name = "com_google_absl",
        package = "libabsl-dev pkg-config",
        modules = [
            "absl_base",
            "absl_flags",
            "absl_flags_parse",
            "absl_flat_hash_map",
            "absl_function_ref",
            "absl_random_random",
            "absl_span",
            "absl_status",
            "absl_statusor",
            "absl_str_format",
            "absl_strings",
            "absl_synchronization",
            "absl_time",
        ],
        paths = ["include/absl"],
        strip_prefix = "absl_",
    )

    debian_root(name = "aarch64_root")
