#include "common/program/secret.h"

#include <gtest/gtest.h>

#include <string>

namespace maypole {
namespace {

TEST(SecretTest, EqualMeansEveryByteAndTheLength) {
  EXPECT_TRUE(EqualSecrets("", ""));
  EXPECT_TRUE(EqualSecrets("open sesame", "open sesame"));
  EXPECT_FALSE(EqualSecrets("open sesame", "open sesamf"));
  EXPECT_FALSE(EqualSecrets("open sesame", "Open sesame"));
  EXPECT_FALSE(EqualSecrets("open sesame", "open sesam"));
  EXPECT_FALSE(EqualSecrets("", "x"));
  EXPECT_FALSE(EqualSecrets("x", ""));
  EXPECT_FALSE(EqualSecrets(std::string("a\0b", 3), std::string("a\0c", 3)));
}

}  // namespace
}  // namespace maypole
