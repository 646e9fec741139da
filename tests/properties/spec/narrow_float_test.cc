// The reference's conversions are right; the product's agree with them for
// every value of 16 bits and around every boundary; and the test would detect a
// product that is wrong in any of the usual ways.
#include "tests/properties/spec/narrow_float.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/reduce/reduce.h"

namespace maypole::properties {
namespace {

struct Conversions {
  NarrowFormat format;
  std::function<float(uint16_t)> widen;
  std::function<uint16_t(float)> narrow;
};

const Conversions kHalfs = {kHalf, HalfToFloat, FloatToHalf};
const Conversions kBrains = {kBfloat16, Bfloat16ToFloat, FloatToBfloat16};

// The step to the next float; across zero too.
float Next(float v) {
  return std::nextafter(v, std::numeric_limits<float>::infinity());
}
float Previous(float v) {
  return std::nextafter(v, -std::numeric_limits<float>::infinity());
}

// Each value of the format, the middle between it and the next, and the floats
// beside both; beyond the largest; the smallest floats; NaNs that differ in one
// bit; and any bits.
std::vector<float> Samples(const NarrowFormat& f) {
  std::vector<float> out;
  const auto around = [&out](double v) {
    const auto at = static_cast<float>(v);
    for (const float s : {Previous(at), at, Next(at)}) {
      out.push_back(s);
      out.push_back(-s);
    }
  };
  uint16_t bits = 0;
  for (; std::isfinite(Widen(f, bits + 1)); ++bits) {
    const double low = Widen(f, bits);
    const double high = Widen(f, bits + 1);
    around(low);
    around((low + high) / 2);
  }
  const double largest = Widen(f, bits);
  const double step = largest - Widen(f, bits - 1);
  for (const double steps : {0.0, 0.25, 0.5, 0.75, 1.0, 2.0}) {
    const double v = largest + steps * step;
    if (v < std::numeric_limits<float>::max()) around(v);
  }
  around(std::numeric_limits<float>::max());  // and infinity
  for (uint32_t subnormal = 0; subnormal < 64; ++subnormal) {
    around(std::bit_cast<float>(subnormal));
  }
  for (int bit = 0; bit < 23; ++bit) {
    const float nan = std::bit_cast<float>(0x7f800000u | 1u << bit);
    out.push_back(nan);
    out.push_back(-nan);
  }
  std::mt19937 random(7);
  for (int i = 0; i < 100000; ++i) {
    out.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  }
  return out;
}

std::string Hex(uint32_t bits) {
  char text[16];
  snprintf(text, sizeof(text), "0x%04x", bits);
  return text;
}

// Where `c` is not what the definition says; empty: nowhere. A NaN must stay
// one; which is not said.
std::string FirstDifference(const Conversions& c) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto narrow = static_cast<uint16_t>(bits);
    const float got = c.widen(narrow);
    const float want = Widen(c.format, narrow);
    if (std::isnan(want)
            ? std::isnan(got)
            : std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(want)) {
      continue;
    }
    return "widening " + Hex(bits) + " gives " + std::to_string(got) +
           ", and the definition " + std::to_string(want);
  }
  for (const float v : Samples(c.format)) {
    const uint16_t got = c.narrow(v);
    const uint16_t want = Narrow(c.format, v);
    if (std::isnan(v) ? IsNan(c.format, got) : got == want) continue;
    return "narrowing " + Hex(std::bit_cast<uint32_t>(v)) + " gives " +
           Hex(got) + ", and the definition " + Hex(want);
  }
  return "";
}

// --- The reference -----------------------------------------------------------

// Values that the standard's tables name.
TEST(NarrowFloatTest, KnownHalfs) {
  struct Row {
    uint16_t bits;
    double value;
  };
  for (const Row& row :
       {Row{0x0000, 0}, Row{0x0001, 0x1p-24}, Row{0x03ff, 0x3ffp-24},
        Row{0x0400, 0x1p-14}, Row{0x3555, 0x1.554p-2}, Row{0x3c00, 1},
        Row{0x3c01, 1 + 0x1p-10}, Row{0x4000, 2}, Row{0x7bff, 65504}}) {
    EXPECT_EQ(Widen(kHalf, row.bits), row.value);
    EXPECT_EQ(Widen(kHalf, row.bits | 0x8000), -row.value);
    EXPECT_EQ(Narrow(kHalf, row.value), row.bits);
  }
  EXPECT_TRUE(std::signbit(Widen(kHalf, 0x8000)));
  EXPECT_EQ(Widen(kHalf, 0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(Narrow(kHalf, -std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_TRUE(std::isnan(Widen(kHalf, 0x7c01)));
  EXPECT_TRUE(IsNan(kHalf, Narrow(kHalf, std::nan(""))));
}

TEST(NarrowFloatTest, KnownBfloat16s) {
  struct Row {
    uint16_t bits;
    double value;
  };
  for (const Row& row :
       {Row{0x0000, 0}, Row{0x0001, 0x1p-133}, Row{0x0080, 0x1p-126},
        Row{0x3f80, 1}, Row{0x3f81, 1 + 0x1p-7}, Row{0x4049, 3.140625},
        Row{0x7f7f, 0x1.fep127}}) {
    EXPECT_EQ(Widen(kBfloat16, row.bits), row.value);
    EXPECT_EQ(Narrow(kBfloat16, -row.value), row.bits | 0x8000);
  }
  EXPECT_EQ(Narrow(kBfloat16, std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(Widen(kBfloat16, 0x7f81)));
}

TEST(NarrowFloatTest, RoundsToNearestEven) {
  EXPECT_EQ(Narrow(kHalf, 1 + 0x1p-11), 0x3c00);
  EXPECT_EQ(Narrow(kHalf, 1 + 0x1p-11 + 0x1p-23), 0x3c01);
  EXPECT_EQ(Narrow(kHalf, 1 + 3 * 0x1p-11), 0x3c02);
  EXPECT_EQ(Narrow(kHalf, 65519.99), 0x7bff);
  EXPECT_EQ(Narrow(kHalf, 65520), 0x7c00);
  EXPECT_EQ(Narrow(kHalf, 0x1p-25), 0);  // half of the smallest
  EXPECT_EQ(Narrow(kHalf, 0x1.000002p-25), 1);
  EXPECT_EQ(Narrow(kHalf, 0x1.ffcp-15 + 0x1p-26), 0x0400);  // becomes normal
  EXPECT_EQ(Narrow(kBfloat16, 1 + 0x1p-8), 0x3f80);
  EXPECT_EQ(Narrow(kBfloat16, 1 + 3 * 0x1p-8), 0x3f82);
  EXPECT_EQ(Narrow(kBfloat16, 0x1p-134), 0);
}

TEST(NarrowFloatTest, EveryValueComesBack) {
  for (const NarrowFormat& f : {kHalf, kBfloat16}) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const auto narrow = static_cast<uint16_t>(bits);
      const float v = Widen(f, narrow);
      ASSERT_EQ(std::isnan(v), IsNan(f, narrow)) << bits;
      if (!std::isnan(v)) {
        ASSERT_EQ(Narrow(f, v), narrow);
      }
    }
  }
}

// --- The product -------------------------------------------------------------

TEST(NarrowFloatTest, TheProductConvertsAsTheDefinition) {
  EXPECT_EQ(FirstDifference(kHalfs), "");
  EXPECT_EQ(FirstDifference(kBrains), "");
}

// What a reduction of the dtype makes of a float: 1 times the scale factor, in
// as many elements as a kernel takes at once.
uint16_t NarrowByReduction(DType dtype, uint16_t one, float v) {
  constexpr size_t kElements = 33;
  std::array<uint16_t, kElements> in, out;
  in.fill(one);
  const std::byte* const inputs[] = {reinterpret_cast<std::byte*>(in.data())};
  Reduce(dtype, Op::kSum, inputs, reinterpret_cast<std::byte*>(out.data()),
         kElements, {.divisor = 1, .scale = v});
  for (const uint16_t o : out) EXPECT_EQ(o, out[0]) << v;
  return out[0];
}

// What it makes of each bit pattern: read, and written again.
uint16_t CopyByReduction(DType dtype, uint16_t bits) {
  static std::array<std::array<uint16_t, 65536>, kDTypes> copies;
  std::array<uint16_t, 65536>& all = copies[static_cast<size_t>(dtype)];
  if (all[1] == 0) {
    for (uint32_t i = 0; i < 65536; ++i) all[i] = static_cast<uint16_t>(i);
    const std::byte* const inputs[] = {
        reinterpret_cast<std::byte*>(all.data())};
    Reduce(dtype, Op::kSum, inputs, reinterpret_cast<std::byte*>(all.data()),
           all.size(), {});
  }
  return all[bits];
}

TEST(NarrowFloatTest, TheKernelsConvertAsTheDefinition) {
  EXPECT_EQ(FirstDifference(
                {kHalf,
                 [](uint16_t h) {
                   return Widen(kHalf, CopyByReduction(DType::kFloat16, h));
                 },
                 [](float v) {
                   return NarrowByReduction(DType::kFloat16, 0x3c00, v);
                 }}),
            "");
  EXPECT_EQ(
      FirstDifference({kBfloat16,
                       [](uint16_t b) {
                         return Widen(kBfloat16,
                                      CopyByReduction(DType::kBfloat16, b));
                       },
                       [](float v) {
                         return NarrowByReduction(DType::kBfloat16, 0x3f80, v);
                       }}),
      "");
}

// --- Wrong products ----------------------------------------------------------

bool IsNotFinite(float v) { return !std::isfinite(v); }

// Rounds by `round`, of the bits that are cut off, else as the product does.
uint16_t BrainRounded(float v, uint32_t added) {
  if (std::isnan(v)) return FloatToBfloat16(v);
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(v) + added) >> 16);
}

TEST(NarrowFloatTest, WrongConversionsAreNoticed) {
  struct Sabotage {
    const char* what;
    Conversions wrong;
  };
  const auto half = [](auto narrow) {
    return Conversions{kHalf, HalfToFloat, narrow};
  };
  const auto brain = [](auto narrow) {
    return Conversions{kBfloat16, Bfloat16ToFloat, narrow};
  };
  const Sabotage kSabotages[] = {
      {"half: truncates", half([](float v) {
         const uint16_t h = FloatToHalf(v);
         const bool up = std::fabs(HalfToFloat(h)) > std::fabs(v);
         return static_cast<uint16_t>(up && std::isfinite(v) ? h - 1 : h);
       })},
      {"half: ties away from zero", half([](float v) {
         const uint16_t h = FloatToHalf(v);
         if (IsNotFinite(v)) return h;
         const float next = HalfToFloat(static_cast<uint16_t>(h + 1));
         const bool tie = std::fabs(static_cast<double>(next) - v) ==
                          std::fabs(static_cast<double>(v) - HalfToFloat(h));
         return static_cast<uint16_t>(tie && h % 2 == 0 ? h + 1 : h);
       })},
      {"half: subnormals become zero", half([](float v) {
         const uint16_t h = FloatToHalf(v);
         const bool subnormal = (h & 0x7c00) == 0;
         return static_cast<uint16_t>(subnormal ? h & 0x8000 : h);
       })},
      {"half: half of the smallest rounds up", half([](float v) {
         return std::fabs(v) == 0x1p-25f ? uint16_t{1} : FloatToHalf(v);
       })},
      {"half: saturates", half([](float v) {
         const uint16_t h = FloatToHalf(v);
         const bool too_large = (h & 0x7fff) == 0x7c00 && std::isfinite(v);
         return static_cast<uint16_t>(too_large ? h - 1 : h);
       })},
      {"half: infinite too early", half([](float v) {
         const uint16_t h = FloatToHalf(v);
         const bool late = (h & 0x7fff) == 0x7bff && std::fabs(v) > 65504;
         return static_cast<uint16_t>(late ? h + 1 : h);
       })},
      {"half: low bits of a NaN are cut, infinity is left", half([](float v) {
         if (!std::isnan(v)) return FloatToHalf(v);
         const uint32_t bits = std::bit_cast<uint32_t>(v);
         return static_cast<uint16_t>(0x7c00 | (bits >> 13 & 0x3ff));
       })},
      {"half: -0 loses its sign",
       half([](float v) { return v == 0 ? uint16_t{0} : FloatToHalf(v); })},
      {"half: reads subnormals as zero",
       {kHalf,
        [](uint16_t h) { return (h & 0x7c00) == 0 ? 0.0f : HalfToFloat(h); },
        FloatToHalf}},
      {"half: reads one pattern of 65,536 wrong",
       {kHalf, [](uint16_t h) { return HalfToFloat(h == 0x5aa5 ? 0x5aa6 : h); },
        FloatToHalf}},
      {"half: reads NaN as infinity",
       {kHalf,
        [](uint16_t h) {
          return HalfToFloat(IsNan(kHalf, h) ? uint16_t{0x7c00} : h);
        },
        FloatToHalf}},
      {"bfloat16: truncates",
       brain([](float v) { return BrainRounded(v, 0); })},
      {"bfloat16: ties away from zero",
       brain([](float v) { return BrainRounded(v, 0x8000); })},
      {"bfloat16: ties toward zero",
       brain([](float v) { return BrainRounded(v, 0x7fff); })},
      {"bfloat16: NaN is rounded as a number", brain([](float v) {
         const uint32_t bits = std::bit_cast<uint32_t>(v);
         return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >>
                                      16);
       })},
      {"bfloat16: subnormals become zero", brain([](float v) {
         const uint16_t b = FloatToBfloat16(v);
         return static_cast<uint16_t>((b & 0x7f80) == 0 ? b & 0x8000 : b);
       })},
  };
  for (const Sabotage& s : kSabotages) {
    EXPECT_NE(FirstDifference(s.wrong), "") << s.what;
  }
}

}  // namespace
}  // namespace maypole::properties
