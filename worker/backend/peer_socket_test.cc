// Both ends of a connection, with a test between them that reads, changes,
// repeats and cuts what they send.
#include "worker/backend/peer_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "worker/backend/testing/peer_sockets.h"

namespace maypole::worker {
namespace {

constexpr char kRefused[] = "the TLS handshake failed";

std::string RandomText(std::mt19937& random, size_t bytes) {
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

ssize_t Write(PeerSocket& socket, const std::string& text) {
  const iovec part{const_cast<char*>(text.data()), text.size()};
  return socket.Write(&part, 1);
}

struct Got {
  std::string text;
  ssize_t end = -1;  // what the last Read() has returned, with this errno
  int error = 0;
};

// Reads until there is no more now.
Got ReadAll(PeerSocket& socket, size_t at_once = 5000) {
  Got got;
  std::string room(at_once, '\0');
  for (;;) {
    const iovec part{room.data(), room.size()};
    const ssize_t n = socket.Read(&part, 1);
    if (n > 0) got.text.append(room.data(), static_cast<size_t>(n));
    if (n > 0) continue;
    got.end = n;
    got.error = n < 0 ? errno : 0;
    return got;
  }
}

// Writes all of it while the other end reads.
void Transfer(PeerSocket& from, PeerSocket& to, const std::string& text) {
  std::string got;
  size_t sent = 0;
  while (got.size() < text.size()) {
    const iovec rest{const_cast<char*>(text.data()) + sent, text.size() - sent};
    const ssize_t n = from.Write(&rest, 1);
    if (n > 0) sent += static_cast<size_t>(n);
    ASSERT_TRUE(n >= 0 || errno == EAGAIN) << std::strerror(errno);
    const Got part = ReadAll(to);
    ASSERT_EQ(part.error, EAGAIN) << std::strerror(part.error);
    got += part.text;
  }
  EXPECT_EQ(got, text);
  EXPECT_FALSE(from.has_unsent());
}

// --- In the clear and encrypted ----------------------------------------------

class PeerSocketTest : public testing::TestWithParam<bool> {
 protected:
  PeerSockets ends_ = ConnectedSockets(GetParam());
};

TEST_P(PeerSocketTest, SaysWhetherItIsEncrypted) {
  EXPECT_TRUE(ends_.first.valid());
  EXPECT_EQ(ends_.first.encrypted(), GetParam());
  const std::string suite = ends_.first.Suite();
  EXPECT_EQ(suite, ends_.second.Suite());
  EXPECT_TRUE(GetParam() ? suite == "TLS_AES_128_GCM_SHA256" ||
                               suite == "TLS_CHACHA20_POLY1305_SHA256"
                         : suite.empty())
      << suite;
  PeerSocket none;
  EXPECT_FALSE(none.valid());
  none = std::move(ends_.first);
  EXPECT_TRUE(none.valid());
  none.Reset();
  EXPECT_FALSE(none.valid());
  EXPECT_EQ(ReadAll(ends_.second).end, 0);
}

TEST_P(PeerSocketTest, BytesOfAllSizesInBothDirections) {
  std::mt19937 random(1);
  for (const size_t bytes : {1u, 16u, 100u, 16383u, 16384u, 16385u, 131072u,
                             131073u, 200000u, 3000000u}) {
    const std::string text = RandomText(random, bytes);
    Transfer(ends_.first, ends_.second, text);
    Transfer(ends_.second, ends_.first, text);
  }
}

// As a message's header and its bytes.
TEST_P(PeerSocketTest, PartsOfAllSizesStayInOrder) {
  std::mt19937 random(2);
  std::string sent, got;
  for (int i = 0; i < 300; ++i) {
    std::string texts[3];
    iovec parts[3];
    for (size_t p = 0; p < 3; ++p) {
      const size_t most = std::vector<size_t>{20, 17000, 150000}[random() % 3];
      texts[p] = RandomText(random, random() % most);
      parts[p] = {texts[p].data(), texts[p].size()};
    }
    const std::string all = texts[0] + texts[1] + texts[2];
    const ssize_t n = ends_.first.Write(parts, 3);
    if (n > 0) sent += all.substr(0, static_cast<size_t>(n));
    // Into parts, too.
    std::string room(1 + random() % 100000, '\0');
    const size_t first = random() % room.size();
    const iovec to[2] = {{room.data(), first},
                         {room.data() + first, room.size() - first}};
    const ssize_t m = ends_.second.Read(to, 2);
    if (m > 0) got += room.substr(0, static_cast<size_t>(m));
  }
  for (;;) {
    got += ReadAll(ends_.second).text;
    if (!ends_.first.has_unsent()) break;
    ends_.first.Write(nullptr, 0);
  }
  EXPECT_GT(sent.size(), 1000000u);
  EXPECT_EQ(got == sent, true);
}

TEST_P(PeerSocketTest, NothingWaits) {
  char byte = 0;
  const iovec part{&byte, 1};
  EXPECT_EQ(ends_.second.Read(&part, 1), -1);
  EXPECT_EQ(errno, EAGAIN);
  const std::string text(1 << 20, 'x');
  size_t sent = 0;
  for (ssize_t n = 0; n >= 0;) {
    n = Write(ends_.first, text);
    if (n > 0) sent += static_cast<size_t>(n);
  }
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(ends_.first.has_unsent(), GetParam());
  size_t got = 0;
  while (got < sent) {
    got += ReadAll(ends_.second).text.size();
    ends_.first.Write(nullptr, 0);
  }
  EXPECT_EQ(got, sent);
  EXPECT_FALSE(ends_.first.has_unsent());
}

TEST_P(PeerSocketTest, WhatCameBeforeTheEndIsRead) {
  EXPECT_EQ(Write(ends_.first, "the last words"), 14);
  ends_.first.Reset();
  const Got got = ReadAll(ends_.second);
  EXPECT_EQ(got.text, "the last words");
  EXPECT_EQ(got.end, 0);
  EXPECT_EQ(ReadAll(ends_.second).end, 0);
  EXPECT_EQ(Write(ends_.second, "x"), GetParam() ? 1 : -1);
  EXPECT_EQ(Write(ends_.second, "x"), -1);
  EXPECT_EQ(errno, EPIPE);
}

// Each end reads by one thread and writes by another one.
TEST_P(PeerSocketTest, ReadersAndWritersAtOnce) {
  std::mt19937 random(3);
  const std::string text = RandomText(random, 4 << 20);
  const auto write = [&](PeerSocket* socket) {
    for (size_t sent = 0; sent < text.size() || socket->has_unsent();) {
      const iovec rest{const_cast<char*>(text.data()) + sent,
                       text.size() - sent};
      const ssize_t n = socket->Write(&rest, 1);
      if (n >= 0) {
        sent += static_cast<size_t>(n);
        continue;
      }
      ASSERT_EQ(errno, EAGAIN);
      pollfd wait{socket->fd(), POLLOUT, 0};
      poll(&wait, 1, 10000);
    }
  };
  const auto read = [&](PeerSocket* socket) {
    std::string got;
    while (got.size() < text.size()) {
      const Got part = ReadAll(*socket, 300000);
      ASSERT_EQ(part.error, EAGAIN) << std::strerror(part.error);
      got += part.text;
      if (got.size() == text.size()) break;
      pollfd wait{socket->fd(), POLLIN, 0};
      ASSERT_EQ(poll(&wait, 1, 10000), 1);
    }
    EXPECT_EQ(got == text, true);
  };
  std::vector<std::thread> threads;
  for (PeerSocket* end : {&ends_.first, &ends_.second}) {
    threads.emplace_back(write, end);
    threads.emplace_back(read, end);
  }
  for (std::thread& t : threads) t.join();
}

INSTANTIATE_TEST_SUITE_P(Modes, PeerSocketTest, testing::Bool(),
                         [](const auto& mode) {
                           return mode.param ? "Encrypted" : "Clear";
                         });

// --- Between two ends --------------------------------------------------------

// Somebody in the middle: what the two ends send comes here first.
class Middle {
 public:
  explicit Middle(unsigned char key = 1, unsigned char other_key = 1,
                  uint64_t rekey_bytes = uint64_t{1} << 36) {
    auto [caller, near] = SocketPair();
    auto [listener, far] = SocketPair();
    near_ = std::move(near);
    far_ = std::move(far);
    ends = UnshakenSockets(std::move(caller), std::move(listener), key,
                           other_key, rekey_bytes);
  }

  using Change = std::function<void(std::string* bytes)>;
  // Lets both make their handshake. `change` sees what the caller sends, and
  // what it gets.
  absl::Status Shake(const Change& to_listener = {},
                     const Change& to_caller = {}) {
    bool called = false, heard = false;
    for (int step = 0; step < 6; ++step) {
      const auto a = ends.first.Handshake();
      if (!a.ok()) return a.status();
      std::string bytes = FromCaller();
      if (to_listener) to_listener(&bytes);
      ToListener(bytes);
      const auto b = ends.second.Handshake();
      if (!b.ok()) return b.status();
      bytes = FromListener();
      if (to_caller) to_caller(&bytes);
      ToCaller(bytes);
      called = *a == 0;
      heard = *b == 0;
      if (called && heard) return absl::OkStatus();
    }
    return absl::DeadlineExceededError("the handshake does not end");
  }

  std::string FromCaller() { return Take(near_); }
  std::string FromListener() { return Take(far_); }
  void ToListener(const std::string& bytes) { Give(far_, bytes); }
  void ToCaller(const std::string& bytes) { Give(near_, bytes); }
  void Cut() {
    near_.Reset();
    far_.Reset();
  }

  PeerSockets ends;

 private:
  static std::string Take(const Fd& fd) {
    std::string bytes(1 << 20, '\0');
    const ssize_t n = recv(fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    bytes.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return bytes;
  }
  static void Give(const Fd& fd, const std::string& bytes) {
    if (bytes.empty()) return;
    EXPECT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  Fd near_, far_;
};

TEST(PeerSocketTls, NothingIsReadableOnTheWay) {
  Middle middle;
  std::string all;
  const auto see = [&](std::string* bytes) { all += *bytes; };
  ASSERT_TRUE(middle.Shake(see, see).ok());
  const std::string secret = "layer4.weight/gradient";
  EXPECT_GT(Write(middle.ends.first, secret), 0);
  const std::string bytes = middle.FromCaller();
  all += bytes;
  EXPECT_GE(bytes.size(), secret.size() + 16);
  EXPECT_EQ(all.find("weight"), std::string::npos);
  middle.ToListener(bytes);
  EXPECT_EQ(ReadAll(middle.ends.second).text, secret);
}

TEST(PeerSocketTls, TwoConnectionsOfOneKeySendOtherBytes) {
  std::string sent[2];
  for (std::string& bytes : sent) {
    Middle middle;
    ASSERT_TRUE(middle.Shake().ok());
    EXPECT_EQ(Write(middle.ends.first, "the same"), 8);
    bytes = middle.FromCaller();
  }
  EXPECT_EQ(sent[0].size(), sent[1].size());
  EXPECT_NE(sent[0], sent[1]);
}

TEST(PeerSocketTls, AnotherKeyIsRefused) {
  const absl::Status s = Middle(1, 2).Shake();
  EXPECT_EQ(s.code(), absl::StatusCode::kPermissionDenied) << s;
  EXPECT_EQ(s.message().find(kRefused), 0u) << s;
  EXPECT_NE(s.message().find("outside the job"), std::string::npos) << s;
}

TEST(PeerSocketTls, WhoHangsUpInTheHandshakeIsSaid) {
  Middle middle;
  ASSERT_TRUE(middle.ends.first.Handshake().ok());
  middle.Cut();
  const absl::Status s = middle.ends.first.Handshake().status();
  EXPECT_EQ(s.code(), absl::StatusCode::kUnavailable) << s;
  EXPECT_EQ(s.message().find(kRefused), 0u) << s;
}

// All bits but the version of a record's header, which nobody reads, and which
// is not signed therefore.
TEST(PeerSocketTls, AHandshakeThatWasChangedIsRefused) {
  std::mt19937 random(4);
  int refused = 0, waiting = 0, accepted = 0;
  for (int round = 0; round < 300; ++round) {
    Middle middle;
    const auto flip = [&](std::string* bytes) {
      if (bytes->empty()) return;
      const size_t at = random() % bytes->size();
      (*bytes)[at] = static_cast<char>((*bytes)[at] ^ (1 << random() % 8));
    };
    const absl::Status s =
        round % 2 == 0 ? middle.Shake(flip) : middle.Shake({}, flip);
    if (absl::IsDeadlineExceeded(s)) {
      ++waiting;  // for the rest of a longer record
    } else if (!s.ok()) {
      ++refused;
      EXPECT_EQ(s.message().find(kRefused), 0u) << s;
    } else {
      // The last flight may have been changed after the other end's word.
      ++accepted;
      Write(middle.ends.first, "data");
      middle.ToListener(middle.FromCaller());
      const Got got = ReadAll(middle.ends.second);
      EXPECT_TRUE(got.text == "data" || got.text.empty()) << got.text;
    }
  }
  EXPECT_GT(refused, 250);
  EXPECT_LT(waiting, 40);
  EXPECT_LT(accepted, 40);
}

// A record of 50 bytes after the handshake, in one direction.
class PeerSocketRecords : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(middle_.Shake().ok()); }
  std::string Record(const std::string& text) {
    EXPECT_EQ(Write(middle_.ends.first, text),
              static_cast<ssize_t>(text.size()));
    return middle_.FromCaller();
  }
  // What the listener reads of these bytes.
  Got Deliver(const std::string& bytes) {
    middle_.ToListener(bytes);
    return ReadAll(middle_.ends.second);
  }

  Middle middle_;
};

void ExpectBad(const Got& got, const std::string& before = "") {
  EXPECT_EQ(got.text, before);
  EXPECT_EQ(got.end, -1);
  EXPECT_EQ(got.error, EBADMSG) << std::strerror(got.error);
}

TEST_F(PeerSocketRecords, ARepeatedRecordIsRefused) {
  const std::string record = Record("once");
  EXPECT_EQ(Deliver(record).text, "once");
  ExpectBad(Deliver(record));
  ExpectBad(Deliver(Record("more")));  // nothing else is read
}

TEST_F(PeerSocketRecords, ARecordThatIsSentBackIsRefused) {
  middle_.ToCaller(Record("to the listener"));
  ExpectBad(ReadAll(middle_.ends.first));
}

TEST_F(PeerSocketRecords, AMissingRecordIsNoticed) {
  Record("lost");
  ExpectBad(Deliver(Record("next")));
}

TEST_F(PeerSocketRecords, RecordsInAnotherOrderAreRefused) {
  const std::string one = Record("one");
  const std::string two = Record("two");
  ExpectBad(Deliver(two + one));
}

TEST_F(PeerSocketRecords, ARecordOfAnotherConnectionIsRefused) {
  Middle other;
  ASSERT_TRUE(other.Shake().ok());
  EXPECT_GT(Write(other.ends.first, "foreign"), 0);
  ExpectBad(Deliver(other.FromCaller()));
}

TEST_F(PeerSocketRecords, PlainBytesAreRefused) {
  ExpectBad(Deliver(std::string(100, 'x')));
}

TEST(PeerSocketTls, EachChangedBitIsNoticed) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    Middle middle;
    ASSERT_TRUE(middle.Shake().ok());
    std::string bytes, sent;
    for (int i = 0; i < 40; ++i) {
      const std::string text = RandomText(random, 1000);
      sent += text;
      EXPECT_GT(Write(middle.ends.first, text), 0);
      bytes += middle.FromCaller();
    }
    // In the first half: if it is a length, the rest completes that record.
    const size_t at = random() % (bytes.size() / 2);
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
    middle.ToListener(bytes);
    const Got got = ReadAll(middle.ends.second, 100);
    EXPECT_EQ(got.error, EBADMSG) << "round " << round;
    EXPECT_EQ(got.text, sent.substr(0, got.text.size()));
    EXPECT_LE(got.text.size(), at);
  }
}

TEST(PeerSocketTls, ACutStreamEndsWithWholeRecords) {
  std::mt19937 random(6);
  for (int round = 0; round < 100; ++round) {
    Middle middle;
    ASSERT_TRUE(middle.Shake().ok());
    EXPECT_EQ(Write(middle.ends.first, "first"), 5);
    const std::string one = middle.FromCaller();
    EXPECT_EQ(Write(middle.ends.first, "second"), 6);
    const std::string two = middle.FromCaller();
    const size_t cut = random() % two.size();
    middle.ToListener(one + two.substr(0, cut));
    middle.Cut();
    const Got got = ReadAll(middle.ends.second);
    EXPECT_EQ(got.text, "first");
    EXPECT_EQ(got.end, 0);
  }
}

// All that a caller has sent, to a listener with the same key.
TEST(PeerSocketTls, ARepeatedConnectionIsRefused) {
  std::string sent;
  {
    Middle middle;
    ASSERT_TRUE(middle.Shake([&](std::string* bytes) { sent += *bytes; }).ok());
    EXPECT_GT(Write(middle.ends.first, "pay 10"), 0);
    sent += middle.FromCaller();
  }
  Middle again;
  again.ToListener(sent);
  absl::StatusOr<short> s = again.ends.second.Handshake();
  EXPECT_FALSE(s.ok());
  EXPECT_EQ(ReadAll(again.ends.second).text, "");
}

TEST(PeerSocketTls, ACallerIsNoListener) {
  auto [one, other] = SocketPair();
  handshake::Secret key;
  key.fill(1);
  auto a = PeerSocket::Encrypted(std::move(one), key, {.calls = true});
  auto b = PeerSocket::Encrypted(std::move(other), key, {.calls = true});
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_FALSE(Shake(*a, *b).ok());
}

TEST(PeerSocketTls, KeysChangeOnTheWay) {
  constexpr uint64_t kRekeyBytes = 100000;
  std::mt19937 random(7);
  const std::string text = RandomText(random, 5000000);
  auto [one, other] = SocketPair();
  PeerSockets ends =
      UnshakenSockets(std::move(one), std::move(other), 1, 1, kRekeyBytes);
  ASSERT_TRUE(Shake(ends.first, ends.second).ok());
  Transfer(ends.first, ends.second, text);
  Transfer(ends.second, ends.first, text);
  // A new key is announced by a record of its own.
  Middle middle(1, 1, 10);
  ASSERT_TRUE(middle.Shake().ok());
  EXPECT_EQ(Write(middle.ends.first, "12345678"), 8);
  const size_t before = middle.FromCaller().size();
  EXPECT_EQ(Write(middle.ends.first, "12345678"), 8);
  EXPECT_GT(middle.FromCaller().size(), before);
}

// --- Other programs with TLS -------------------------------------------------

using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;
using Session = std::unique_ptr<SSL, decltype(&SSL_free)>;

Context NewContext() { return {SSL_CTX_new(TLS_method()), SSL_CTX_free}; }

// A certificate that its owner has signed.
void UseCertificate(SSL_CTX* context) {
  std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"), EVP_PKEY_free);
  std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(),
                                                          X509_free);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 1000);
  X509_set_pubkey(certificate.get(), key.get());
  EXPECT_GT(X509_sign(certificate.get(), key.get(), EVP_sha256()), 0);
  EXPECT_EQ(SSL_CTX_use_certificate(context, certificate.get()), 1);
  EXPECT_EQ(SSL_CTX_use_PrivateKey(context, key.get()), 1);
}

// Returns what `ours` says of a stranger's end.
absl::Status Meet(PeerSocket* ours, SSL* stranger) {
  for (int step = 0; step < 10; ++step) {
    const absl::StatusOr<short> events = ours->Handshake();
    if (!events.ok()) return events.status();
    if (*events == 0) return absl::OkStatus();
    SSL_do_handshake(stranger);
  }
  return absl::DeadlineExceededError("the handshake does not end");
}

class PeerSocketStrangers : public testing::TestWithParam<bool> {
 protected:
  // `calls`: whether our end does.
  absl::Status MeetStranger(SSL_CTX* context, bool calls) {
    auto [mine, theirs] = SocketPair();
    fcntl(theirs.get(), F_SETFL, O_NONBLOCK);
    handshake::Secret key;
    key.fill(1);
    auto ours = PeerSocket::Encrypted(std::move(mine), key, {.calls = calls});
    EXPECT_TRUE(ours.ok());
    const Session stranger(SSL_new(context), SSL_free);
    SSL_set_fd(stranger.get(), theirs.get());
    if (calls) {
      SSL_set_accept_state(stranger.get());
    } else {
      SSL_set_connect_state(stranger.get());
    }
    return Meet(&*ours, stranger.get());
  }
};

TEST_P(PeerSocketStrangers, WithoutTheKeyAreRefused) {
  const Context context = NewContext();
  UseCertificate(context.get());
  const absl::Status s = MeetStranger(context.get(), GetParam());
  EXPECT_EQ(s.code(), absl::StatusCode::kPermissionDenied) << s;
}

TEST_P(PeerSocketStrangers, WithAnOlderVersionAreRefused) {
  const Context context = NewContext();
  UseCertificate(context.get());
  SSL_CTX_set_max_proto_version(context.get(), TLS1_2_VERSION);
  const absl::Status s = MeetStranger(context.get(), GetParam());
  EXPECT_EQ(s.code(), absl::StatusCode::kPermissionDenied) << s;
}

INSTANTIATE_TEST_SUITE_P(Roles, PeerSocketStrangers, testing::Bool(),
                         [](const auto& role) {
                           return role.param ? "AsListeners" : "AsCallers";
                         });

TEST(PeerSocketTls, ErrorsSayWhatToLookFor) {
  EXPECT_NE(ConnectionErrorText(ETIMEDOUT).find("--network_timeout"),
            std::string::npos);
  EXPECT_NE(ConnectionErrorText(EBADMSG).find("changed, repeated"),
            std::string::npos);
  EXPECT_EQ(ConnectionErrorText(ECONNRESET), std::strerror(ECONNRESET));
}

}  // namespace
}  // namespace maypole::worker
