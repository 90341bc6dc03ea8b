// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/run_main.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>

#include "cohort/core/error.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;

int run(const std::function<int(Arguments)>& program) {
  std::string words[] = {"prog", "--steps", "3"};
  char* argv[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  return run_main(3, argv, program);
}

TEST(RunMain, GivesTheArgumentsAndReturnsTheResult) {
  EXPECT_EQ(run([](const Arguments& arguments) {
              EXPECT_EQ(arguments.program, "prog");
              EXPECT_THAT(arguments.values, ElementsAre("--steps", "3"));
              return 7;
            }),
            7);
}

TEST(RunMain, TakesAnEmptyCommandLine) {
  char* argv[] = {nullptr};
  EXPECT_EQ(run_main(0, argv, [](const Arguments& a) { return a.values.empty() ? 0 : 1; }), 0);
}

// The places of a trace error, and what was going on, were one line with the message.
TEST(RunMain, PrintsAnErrorWithTheLinesThatItHasAndEndsWithItsCode) {
  ::testing::internal::CaptureStderr();
  const int code = run([](const Arguments&) -> int {
    throw Error(ErrorCode::unavailable, "nobody answers\n    at main.cpp:7")
        .at("ps:0")
        .during("connect");
  });
  EXPECT_EQ(code, 69);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "error: unavailable from ps:0: nobody answers\n    at main.cpp:7\n  while connect\n");
}

// The table of run_main.h.
TEST(RunMain, ExitCodesAreThoseOfTheTable) {
  using Code = ErrorCode;
  const std::pair<int, Error> rows[] = {
      {64, Error(Code::invalid_argument, "[strategy.mirrored] …")},
      {64, Error(Code::not_found, "…")},
      {64, Error(Code::data_loss, "a broken file")},
      {69, Error(Code::unavailable, "…")},
      {69, Error(Code::deadline_exceeded, "…")},
      {69, Error(Code::data_loss, "a broken frame", ErrorCause::peer_lost)},
      {70, Error(Code::internal, "a broken invariant")},
      {70, Error(Code::invalid_argument, "a wrong shape in a step", ErrorCause::application)},
      {75, Error(Code::resource_exhausted, "…")},
      {75, Error(Code::aborted, "another coordinator took its place", ErrorCause::handle_lost)},
  };
  for (const auto& [code, error] : rows) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(run([&e = error](const Arguments&) -> int { throw Error(e); }), code) << error.what();
    ::testing::internal::GetCapturedStderr();
  }
}

// `cohort launch` reads it there, since it parses no messages.
TEST(RunMain, TellsTheLauncherWhoseErrorItIs) {
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  ::setenv("COHORT_ORIGIN_FD", std::to_string(pipe[1]).c_str(), 1);
  ::testing::internal::CaptureStderr();
  run([](const Arguments&) -> int { throw std::runtime_error("my own"); });
  run([](const Arguments&) -> int { throw Error(ErrorCode::unknown, "its step").at("worker:1"); });
  ::testing::internal::GetCapturedStderr();
  ::unsetenv("COHORT_ORIGIN_FD");
  ::close(pipe[1]);
  char text[64];
  const ssize_t count = ::read(pipe[0], text, sizeof text);
  ::close(pipe[0]);
  EXPECT_EQ(std::string(text, static_cast<std::size_t>(std::max<ssize_t>(count, 0))), "worker:1");
}

// The next socket got the number of a stream that was closed, and lines were printed into it.
TEST(RunMain, OpensTheStreamsThatAreClosed) {
  std::fflush(stdout);
  int kept[3];
  for (int fd = 0; fd < 3; ++fd) kept[fd] = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  for (int fd = 0; fd < 3; ++fd) ::close(fd);
  std::string opened;
  run([&opened](const Arguments&) {
    for (const char* fd : {"0", "1", "2"}) {
      std::error_code absent;
      opened += std::filesystem::read_symlink(std::string("/proc/self/fd/") + fd, absent);
      opened += ' ';
    }
    return 0;
  });
  for (int fd = 0; fd < 3; ++fd) {
    ::dup2(kept[fd], fd);
    ::close(kept[fd]);
  }
  EXPECT_EQ(opened, "/dev/null /dev/null /dev/null ");
}

TEST(RunMain, TakesForeignExceptionsForInternalErrors) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run([](const Arguments&) -> int { throw std::runtime_error("boom"); }), 70);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::HasSubstr("boom"));
}

// It was aborted, by a library's thread or before main().
TEST(RunMainDeathTest, ALackOfMemoryThatNobodyCatchesHasAnExitCode) {
  EXPECT_EXIT(
      {
        end_by_name_without_memory();
        std::thread([] { throw std::bad_alloc(); }).join();
      },
      ::testing::ExitedWithCode(75), "not enough memory");
}

// Ends with code 11 if exit() is called.
int lack_address_space() {
  rlimit limit{};
  ::getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = rlim_t{1} << 60;
  ::setrlimit(RLIMIT_AS, &limit);
  std::atexit([] { std::_Exit(11); });
  return run([](const Arguments&) -> int {
    throw Error(ErrorCode::resource_exhausted, "no room for products of matrices");
  });
}

// exit() waited for ever for threads of OpenBLAS, after the error was printed.
TEST(RunMainDeathTest, ALackOfAddressSpaceEndsTheProcessAtOnce) {
  EXPECT_EXIT(std::exit(lack_address_space()), ::testing::ExitedWithCode(75),
              "no room for products of matrices");
}

// Writes more than a file may have; 11 if that is an error of the write.
int write_above_the_limit() {
  rlimit one_block{};
  ::getrlimit(RLIMIT_FSIZE, &one_block);
  one_block.rlim_cur = 512;
  ::setrlimit(RLIMIT_FSIZE, &one_block);
  return run([](const Arguments&) {
    std::FILE* const file = std::tmpfile();
    const std::string bytes(1 << 16, 'x');
    const bool fails =
        std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size() || std::fflush(file) != 0;
    return fails && errno == EFBIG ? 11 : 12;
  });
}

// It was ended by SIGXFSZ, without a word.
TEST(RunMainDeathTest, AFileAboveTheLimitIsAnErrorOfItsWrite) {
  EXPECT_EXIT(std::exit(write_above_the_limit()), ::testing::ExitedWithCode(11), "");
}

}  // namespace
}  // namespace cohort
