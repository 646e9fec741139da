#include "worker/agent/sealed_tls.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace maypole::worker {
namespace {

TlsOptions Some() {
  return {.ca = "ca\n", .cert = "cert", .key = "key", .server_name = "head"};
}

TEST(SealedTlsTest, EveryReaderGetsAll) {
  const Fd fd = *SealTls(Some());
  for (int i = 0; i < 2; ++i) {
    const auto read = ReadSealedTls(Fd(dup(fd.get())));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->ca, "ca\n");
    EXPECT_EQ(read->cert, "cert");
    EXPECT_EQ(read->key, "key");
    EXPECT_EQ(read->server_name, "head");
  }
}

TEST(SealedTlsTest, NobodyChangesIt) {
  const Fd fd = *SealTls(Some());
  EXPECT_EQ(pwrite(fd.get(), "x", 1, 0), -1);
  EXPECT_EQ(ftruncate(fd.get(), 0), -1);
}

TEST(SealedTlsTest, WithoutTlsThereIsNothing) {
  EXPECT_FALSE(SealTls({})->valid());
  EXPECT_FALSE(ReadSealedTls(Fd())->enabled());
}

TEST(SealedTlsTest, ForeignDescriptorsAreRefused) {
  EXPECT_FALSE(ReadSealedTls(Fd(open("/dev/null", O_RDONLY))).ok());
  EXPECT_FALSE(ReadSealedTls(Fd(open("/proc/self/exe", O_RDONLY))).ok());
}

}  // namespace
}  // namespace maypole::worker
