#include "client/launcher/command/framework_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace maypole::launcher {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

Frameworks Found(std::map<std::string, std::string> versions,
                 std::string backend = "tensorflow") {
  return {.python = "/usr/bin/python3",
          .versions = std::move(versions),
          .keras_backend = std::move(backend),
          .libraries = {"tensorflow", "jax", "mxnet"},
          .library_directory = "/opt/lib"};
}

FrameworkRow RowOf(const std::string& module, const Frameworks& found) {
  for (const FrameworkRow& row : DescribeFrameworks(found)) {
    if (row.module == module) return row;
  }
  ADD_FAILURE() << module;
  return {};
}

void ExpectRefused(const FrameworkRow& row, const std::string& text) {
  EXPECT_FALSE(row.supported);
  EXPECT_EQ(row.text, text);
  EXPECT_THAT(row.notes, IsEmpty());
}

TEST(FrameworkRowsTest, NothingIsThere) {
  for (const FrameworkRow& row : DescribeFrameworks(Found({}))) {
    EXPECT_FALSE(row.supported);
    EXPECT_THAT(row.text, HasSubstr("(/usr/bin/python3 does not find it)"));
  }
  for (const FrameworkRow& row : DescribeFrameworks({})) {
    EXPECT_THAT(row.text, HasSubstr("(there is no python3 on PATH)"));
  }
}

TEST(FrameworkRowsTest, TensorFlow) {
  FrameworkRow row = RowOf("tensorflow", Found({{"tensorflow", "2.18.1"}}));
  EXPECT_TRUE(row.supported);
  EXPECT_EQ(row.text, "TensorFlow 2.18.1 (of /usr/bin/python3)");
  EXPECT_THAT(row.notes, Contains(HasSubstr("jit_compile=True")));
  EXPECT_THAT(row.notes, Not(Contains(HasSubstr("2.13"))));
  EXPECT_THAT(row.notes, Not(Contains(HasSubstr("not tried"))));
  row = RowOf("tensorflow", Found({{"tensorflow", "2.12.1"}}));
  EXPECT_TRUE(row.supported);
  EXPECT_THAT(row.notes, Contains(HasSubstr("older than 2.13")));
  row = RowOf("tensorflow", Found({{"tensorflow", "2.22.0rc1"}}));
  EXPECT_TRUE(row.supported);
  EXPECT_THAT(row.notes, Contains("newer than 2.21: not tried"));
  EXPECT_TRUE(RowOf("tensorflow", Found({{"tensorflow", "?"}})).supported);
  ExpectRefused(RowOf("tensorflow", Found({{"tensorflow", "2.7.4"}})),
                "TensorFlow 2.7.4 (too old: Maypole supports 2.8 to 2.21)");
}

TEST(FrameworkRowsTest, ALibraryIsMissing) {
  Frameworks found = Found({{"tensorflow", "2.18.1"}, {"keras", "3.8.0"}});
  found.libraries.clear();
  ExpectRefused(RowOf("tensorflow", found),
                "TensorFlow 2.18.1 (there is no libmaypole_tensorflow.so in "
                "/opt/lib)");
  EXPECT_FALSE(RowOf("keras", found).supported);
}

TEST(FrameworkRowsTest, Torch) {
  EXPECT_TRUE(RowOf("torch", Found({{"torch", "1.13.0a0"}})).supported);
  EXPECT_TRUE(RowOf("torch", Found({{"torch", "2.15.0+cpu"}})).supported);
  ExpectRefused(RowOf("torch", Found({{"torch", "1.12.1"}})),
                "PyTorch 1.12.1 (too old: Maypole supports 1.13 and newer)");
}

TEST(FrameworkRowsTest, Mxnet) {
  FrameworkRow row =
      RowOf("mxnet", Found({{"mxnet", "1.9.1"}, {"numpy", "1.23.5"}}));
  EXPECT_TRUE(row.supported);
  EXPECT_THAT(row.notes, Contains(HasSubstr("archived")));
  ExpectRefused(RowOf("mxnet", Found({{"mxnet", "1.9.1"}, {"numpy", "2.0.2"}})),
                "MXNet 1.9.1 (it cannot be imported with NumPy 2.0.2: install "
                "1.23)");
  EXPECT_FALSE(RowOf("mxnet", Found({{"mxnet", "2.0.0"}})).supported);
}

TEST(FrameworkRowsTest, Jax) {
  EXPECT_TRUE(
      RowOf("jax", Found({{"jax", "0.4.38"}, {"jaxlib", "0.4.38"}})).supported);
  EXPECT_TRUE(
      RowOf("jax", Found({{"jax", "0.10.2"}, {"jaxlib", "0.10.2"}})).supported);
  ExpectRefused(
      RowOf("jax", Found({{"jax", "0.4.31"}, {"jaxlib", "0.4.31"}})),
      "JAX 0.4.31 (its jaxlib 0.4.31 is too old: Maypole supports 0.4.38 and "
      "newer)");
  ExpectRefused(RowOf("jax", Found({{"jax", "0.4.38"}})),
                "JAX 0.4.38 (it needs jaxlib, which is not there)");
}

TEST(FrameworkRowsTest, Keras) {
  const std::pair<std::string, std::string> keras3{"keras", "3.8.0"};
  FrameworkRow row = RowOf("keras", Found({keras3, {"tensorflow", "2.18.1"}}));
  EXPECT_TRUE(row.supported);
  EXPECT_THAT(row.notes, Contains("backend tensorflow (KERAS_BACKEND)"));
  EXPECT_TRUE(
      RowOf("keras", Found({keras3, {"torch", "2.8.0"}}, "torch")).supported);
  ExpectRefused(RowOf("keras", Found({keras3})),
                "Keras 3.8.0 (its backend tensorflow is not installed: set "
                "KERAS_BACKEND to another one)");
  ExpectRefused(RowOf("keras", Found({keras3}, "openvino")),
                "Keras 3.8.0 (its backend is openvino: set KERAS_BACKEND to "
                "tensorflow, jax or torch)");
  EXPECT_THAT(
      RowOf("keras",
            Found({keras3, {"jax", "0.4.31"}, {"jaxlib", "0.4.31"}}, "jax"))
          .text,
      HasSubstr("Keras 3.8.0 (not with its backend JAX 0.4.31 (its jaxlib"));
  EXPECT_TRUE(
      RowOf("keras", Found({{"keras", "2.15.0"}, {"tensorflow", "2.15.1"}}))
          .supported);
  ExpectRefused(RowOf("keras", Found({{"keras", "2.15.0"}})),
                "Keras 2.15.0 (it needs TensorFlow, which is not there)");
}

}  // namespace
}  // namespace maypole::launcher
