// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/line_prefixer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "cohort/core/file_descriptor.h"

namespace cohort::cli {
namespace {

// The bytes that can be read from the other end of a pipe.
class LinePrefixerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::pipe2(fds_.data(), O_CLOEXEC | O_NONBLOCK), 0);
    ::fcntl(fds_[1], F_SETPIPE_SZ, 1 << 18);
  }
  void TearDown() override {
    for (const int fd : fds_) ::close(fd);
  }
  LinePrefixer prefixer() { return LinePrefixer("[ps:0] ", fds_[1]); }
  std::string written() {
    std::string text(1 << 18, '\0');
    const ssize_t count = ::read(fds_[0], text.data(), text.size());
    text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
    return text;
  }

  std::array<int, 2> fds_{};
};

TEST_F(LinePrefixerTest, PrefixesEachLine) {
  prefixer().write("one\n\ntwo\n");
  EXPECT_EQ(written(), "[ps:0] one\n[ps:0] \n[ps:0] two\n");
}

TEST_F(LinePrefixerTest, HoldsAnUnfinishedLineBack) {
  LinePrefixer lines = prefixer();
  lines.write("fir");
  EXPECT_EQ(written(), "");
  lines.write("st\nsec");
  EXPECT_EQ(written(), "[ps:0] first\n");
  lines.finish();
  EXPECT_EQ(written(), "[ps:0] sec\n");
}

TEST_F(LinePrefixerTest, FinishWithoutARestWritesNothing) {
  LinePrefixer lines = prefixer();
  lines.write("one\n");
  written();
  lines.finish();
  EXPECT_EQ(written(), "");
}

TEST_F(LinePrefixerTest, RemembersTheFirstErrorOfAWrite) {
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  LinePrefixer lines("[ps:0] ", full);
  EXPECT_EQ(lines.error(), 0);
  lines.write("one\n");
  EXPECT_EQ(lines.error(), ENOSPC);
  ::close(full);
}

TEST_F(LinePrefixerTest, CutsALineWithoutEnd) {
  LinePrefixer lines = prefixer();
  lines.write(std::string(70'000, 'x'));
  EXPECT_EQ(written(), "[ps:0] " + std::string(70'000, 'x') + "\n");
}

// Regression: a progress bar, which ends its lines with a carriage return or begins them with one,
// was held back until its end.
TEST_F(LinePrefixerTest, ShowsALineThatIsRedrawnAtOnce) {
  LinePrefixer lines = prefixer();
  lines.write("10 %\r");
  EXPECT_EQ(written(), "[ps:0] 10 %\n");
  lines.write("20 %\r30 %\r\n");
  EXPECT_EQ(written(), "[ps:0] 20 %\n[ps:0] 30 %\n");
  lines.write("\r10 %");
  EXPECT_EQ(written(), "[ps:0] 10 %\n");
  lines.write("\r20 %");
  EXPECT_EQ(written(), "[ps:0] 20 %\n");
  lines.write("\nnext\n");
  EXPECT_EQ(written(), "[ps:0] next\n");
  lines.finish();
  EXPECT_EQ(written(), "");
}

TEST_F(LinePrefixerTest, TakesACarriageReturnAndALineFeedForOneEnd) {
  LinePrefixer lines = prefixer();
  lines.write("one\r\n\r\ntwo\r");
  lines.write("\nthree\r\n");
  EXPECT_EQ(written(), "[ps:0] one\n[ps:0] \n[ps:0] two\n[ps:0] three\n");
}

// Each piece is drawn over the one before it, and the last one keeps its place.
TEST_F(LinePrefixerTest, RedrawsALineInItsPlaceOnATerminal) {
  const FileDescriptor master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
  ASSERT_TRUE(master.is_open());
  ASSERT_EQ(::grantpt(master.get()) + ::unlockpt(master.get()), 0);
  const FileDescriptor terminal(::open(::ptsname(master.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  const auto drawn = [&] {
    char text[256];
    const ssize_t count = ::read(master.get(), text, sizeof text);
    return std::string(text, count > 0 ? static_cast<std::size_t>(count) : 0);
  };
  LinePrefixer lines("[ps:0] ", terminal.get());
  lines.write("10 %\r");
  EXPECT_EQ(drawn(), "\r\x1b[K[ps:0] 10 %");
  lines.write("20 ");
  EXPECT_EQ(drawn(), "\r\x1b[K[ps:0] 20 ");
  lines.write("%\r");
  EXPECT_EQ(drawn(), "\r\x1b[K[ps:0] 20 %");
  lines.finish();
  EXPECT_EQ(drawn(), "\r\x1b[K[ps:0] 20 %\r\n");
}

}  // namespace
}  // namespace cohort::cli
