// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/system_error.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

namespace cohort {
namespace {

using ::testing::HasSubstr;

TEST(SystemError, LimitsThatAUserCanRaiseComeWithTheRemedy) {
  EXPECT_THAT(text_of_errno(EMFILE), HasSubstr("Too many open files; raise"));
  EXPECT_THAT(text_of_errno(EMFILE), HasSubstr("ulimit -n"));
  EXPECT_THAT(text_of_errno(ENFILE), HasSubstr("fs.file-max"));
  EXPECT_EQ(text_of_errno(ENOENT), "No such file or directory");
}

TEST(SystemError, WhatTheProcessLacksIsExhausted) {
  for (const int number : {EMFILE, ENFILE, ENOSPC, ENOMEM, EFBIG})
    EXPECT_EQ(code_of_errno(number, ErrorCode::internal), ErrorCode::resource_exhausted);
  EXPECT_EQ(code_of_errno(EPIPE, ErrorCode::unavailable), ErrorCode::unavailable);
}

TEST(SystemError, AFileThatIsMissingOrClosedToUsIsNamedSo) {
  for (const int number : {ENOENT, ENOTDIR})
    EXPECT_EQ(code_of_file_errno(number), ErrorCode::not_found);
  for (const int number : {EACCES, EROFS})
    EXPECT_EQ(code_of_file_errno(number), ErrorCode::permission_denied);
  EXPECT_EQ(code_of_file_errno(ENOSPC), ErrorCode::resource_exhausted);
  EXPECT_EQ(code_of_file_errno(EISDIR), ErrorCode::failed_precondition);
}

// The limit is lowered so that the process cannot open one more descriptor.
TEST(SystemError, KnowsThatThereIsNoDescriptorLeft) {
  EXPECT_EQ(lacks_descriptors(), 0);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const int lack = lacks_descriptors();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(lack, EMFILE);
}

// It was reported as an error of the user's program, with the exit code of a fault.
TEST(SystemError, AStandardExceptionOfALimitIsExhaustedToo) {
  try {
    throw std::filesystem::filesystem_error("cannot open", "/x",
                                            std::make_error_code(std::errc::too_many_files_open));
  } catch (...) {
    const Error error = current_error();
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
    EXPECT_THAT(error.message(), HasSubstr("ulimit -n"));
    EXPECT_EQ(exit_code_of(error), 75);
  }
}

}  // namespace
}  // namespace cohort
