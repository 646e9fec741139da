#include "common/reduce/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace maypole {
namespace {

TEST(CopyTest, CopiesExactlyTheRangeAtAnyAddressAndLength) {
  std::vector<std::byte> from(700), want(700);
  for (size_t i = 0; i < from.size(); ++i) from[i] = std::byte(i * 7 + 1);
  for (size_t to_at : {0, 1, 15, 16, 17, 40}) {
    for (size_t from_at : {0, 3, 16}) {
      for (size_t n : {0, 1, 15, 16, 63, 64, 65, 127, 300, 600}) {
        std::vector<std::byte> to(700, std::byte{0xee});
        want.assign(700, std::byte{0xee});
        std::copy_n(from.begin() + from_at, n, want.begin() + to_at);
        CopyStreamed(to.data() + to_at, from.data() + from_at, n);
        ASSERT_EQ(to, want) << to_at << " " << from_at << " " << n;
      }
    }
  }
}

}  // namespace
}  // namespace maypole
