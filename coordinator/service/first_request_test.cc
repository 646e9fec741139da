#include "coordinator/service/first_request.h"

#include <random>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using State = FirstRequest::State;
using ::testing::HasSubstr;

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string Frame(int type, int flags, int stream, const std::string& payload) {
  std::string out;
  for (const int shift : {16, 8, 0}) {
    out += static_cast<char>(payload.size() >> shift);
  }
  out += {static_cast<char>(type),  static_cast<char>(flags), 0, 0, 0,
          static_cast<char>(stream)};
  return out + payload;
}

std::string Field(const std::string& name, const std::string& value,
                  int huffman = 0) {
  return absl::StrCat(
      std::string(1, '\0'),
      std::string(1, static_cast<char>(name.size() | huffman)), name,
      std::string(1, static_cast<char>(value.size() | huffman)), value);
}

const std::string kSettings = Frame(4, 0, 0, std::string("\0\2\0\0\0\0", 6));
const std::string kAck = Frame(4, 1, 0, "");
const std::string kWindow = Frame(8, 0, 0, std::string("\0\1\0\0", 4));
std::string Call(const std::string& secret) {
  return Frame(
      1, 4, 1,
      "\x83\x86" + Field("maypole-secret", secret) + Field("te", "trailers"));
}

TEST(FirstRequestTest, KeepsForGrpcAllButWhatWasAnswered) {
  const std::string call = Call("sesame") + Frame(0, 0, 1, "a message");
  const std::string sent = absl::StrCat(
      kPreface, kSettings, kWindow, kAck, Frame(6, 0, 0, "12345678"),
      Frame(6, 1, 0, "answered"), Frame(99, 7, 3, "of the future"), call);
  for (size_t step = 1; step <= sent.size(); ++step) {
    FirstRequest first;
    size_t at = 0;
    State state = State::kPreface;
    for (; state != State::kComplete && at < sent.size(); at += step) {
      state = first.Read(absl::string_view(sent).substr(at, step));
      ASSERT_NE(state, State::kMalformed) << step << " " << at;
    }
    ASSERT_EQ(state, State::kComplete) << step;
    EXPECT_EQ(first.bytes() + (at < sent.size() ? sent.substr(at) : ""),
              absl::StrCat(kPreface, kSettings, kWindow,
                           Frame(99, 7, 3, "of the future"), call))
        << step;
    EXPECT_EQ(first.TakeReplies(), Frame(6, 1, 0, "12345678"));
    EXPECT_EQ(first.TakeReplies(), "");
    EXPECT_EQ(first.Secret().bytes, "sesame");
    EXPECT_FALSE(first.Secret().huffman);
  }
}

TEST(FirstRequestTest, IsOnlyWhatAClientSendsFirst) {
  const std::string hello = absl::StrCat(kPreface, kSettings);
  const std::string fields = Field("maypole-secret", "s");
  for (const std::string& sent : {
           std::string("GET / HTTP/1.1\r\n"),
           std::string("\x16\x03\x01\x02\0", 5),
           hello + Frame(0, 0, 1, "data"),
           hello + Frame(3, 0, 1, "rest"),      // RST_STREAM
           hello + Frame(1, 0, 1, fields),      // CONTINUATION would follow
           hello + Frame(1, 4, 0, fields),      // no stream
           hello + Frame(9, 4, 1, fields),      // CONTINUATION
           hello + Frame(7, 0, 0, "12345678"),  // GOAWAY
           hello + Frame(6, 0, 0, "1234567"),   // PING
           hello + std::string("\x7f\xff\xff\0\0\0\0\0\1", 9),
           hello + std::string("\0\x20\0\1\4\0\0\0\1", 9),
       }) {
    FirstRequest first;
    EXPECT_EQ(first.Read(sent), State::kMalformed) << absl::CEscape(sent);
  }
}

TEST(FirstRequestTest, ItsBytesAreBounded) {
  for (const std::string& frame :
       {kSettings, kAck, Frame(6, 0, 0, "12345678"), kWindow}) {
    FirstRequest first;
    State state = first.Read(kPreface);
    size_t sent = 0;
    for (; state == State::kFrames; sent += frame.size()) {
      state = first.Read(frame);
    }
    EXPECT_EQ(state, State::kMalformed);
    EXPECT_LE(sent, kMaxFirstBytes);
    EXPECT_LE(first.bytes().capacity(), 2 * kMaxFirstBytes);
  }
}

TEST(FirstRequestTest, WithoutASecret) {
  for (const std::string& fields :
       {std::string(), Field("maypole-secret", ""), Field("maypole", "x"),
        std::string("\0\x0emaypole-secret", 16),
        std::string("\0\x0emaypole-secret\x7f\xff\xff\xff\xff", 21),
        std::string("\0\x0emaypole-secret\x05"
                    "four",
                    21)}) {
    FirstRequest first;
    ASSERT_EQ(
        first.Read(absl::StrCat(kPreface, kSettings, Frame(1, 4, 1, fields))),
        State::kComplete);
    EXPECT_EQ(first.Secret().bytes, "") << absl::CEscape(fields);
  }
}

// RFC 7541, appendix C.4 and C.6.
TEST(FirstRequestTest, HuffmansCode) {
  for (const auto& [text, hex] :
       {std::pair("www.example.com", "f1e3c2e5f23a6ba0ab90f4ff"),
        std::pair("no-cache", "a8eb10649cbf"),
        std::pair("custom-key", "25a849e95ba97d7f"),
        std::pair("custom-value", "25a849e95bb8e8b4bf"),
        std::pair("302", "6402"), std::pair("private", "aec3771a4b"),
        std::pair("Mon, 21 Oct 2013 20:13:21 GMT",
                  "d07abe941054d444a8200595040b8166e082a62d1bff"),
        std::pair("https://www.example.com",
                  "9d29ad171863c78f0b97c8e9ae82ae43d3"),
        std::pair("foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
                  "94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f"
                  "9587316065c003ed4ee5b1063d5007")}) {
    EXPECT_EQ(absl::BytesToHexString(HuffmanEncode(text)), hex) << text;
  }
  const std::string name = HuffmanEncode("maypole-secret");
  FirstRequest first;
  ASSERT_EQ(
      first.Read(absl::StrCat(
          kPreface, kSettings,
          Frame(1, 4, 1, Field(name, HuffmanEncode("open sesame"), 128)))),
      State::kComplete);
  EXPECT_TRUE(first.Secret().huffman);
  EXPECT_EQ(first.Secret().bytes, HuffmanEncode("open sesame"));
}

TEST(FirstRequestTest, ALongSecret) {
  std::string field = Field("maypole-secret", "");
  field.pop_back();
  field += "\x7f\x80\x01" + std::string(255, 'x');
  FirstRequest first;
  ASSERT_EQ(
      first.Read(absl::StrCat(kPreface, kSettings, Frame(1, 4, 1, field))),
      State::kComplete);
  EXPECT_EQ(first.Secret().bytes, std::string(255, 'x'));
}

TEST(FirstRequestTest, TheRefusalIsTheCallsEnd) {
  FirstRequest first;
  ASSERT_EQ(first.Read(absl::StrCat(kPreface, kSettings, Call("guess"))),
            State::kComplete);
  const std::string refusal = first.Refusal(
      grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "100 %\nno"));
  EXPECT_THAT(refusal, HasSubstr(Field("grpc-status", "16") +
                                 Field("grpc-message", "100 %25%0Ano")));
  EXPECT_THAT(refusal,
              HasSubstr(Frame(7, 0, 0, std::string("\0\0\0\1\0\0\0\0", 8))));
}

TEST(FirstRequestTest, GarbageEndsInTime) {
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    std::string sent = absl::StrCat(kPreface, kSettings, kAck, kWindow,
                                    Call("sesame"), Call("more"));
    for (int i = random() % 4; i >= 0; --i) {
      const size_t at = random() % sent.size();
      if (random() % 2) {
        sent[at] = static_cast<char>(random());
      } else {
        sent.erase(at, random() % 8);
      }
    }
    FirstRequest first;
    for (size_t at = 0; at < sent.size() && first.state() <= State::kFrames;) {
      const size_t step = 1 + random() % 40;
      first.Read(absl::string_view(sent).substr(at, step));
      at += step;
    }
    if (first.state() != State::kComplete) continue;
    EXPECT_LE(first.Secret().bytes.size(), sent.size()) << seed;
    EXPECT_LE(first.bytes().size(), sent.size()) << seed;
  }
}

}  // namespace
}  // namespace maypole::coordinator
