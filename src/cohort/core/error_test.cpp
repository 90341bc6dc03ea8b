// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/error.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <new>
#include <set>
#include <stdexcept>
#include <system_error>

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct CodeRow {
  ErrorCode code;
  std::string_view name;
  RetryClass retry_class;
  int exit_code;
};

constexpr CodeRow kCodes[] = {
    {ErrorCode::cancelled, "cancelled", RetryClass::never, 75},
    {ErrorCode::unknown, "unknown", RetryClass::never, 70},
    {ErrorCode::invalid_argument, "invalid_argument", RetryClass::never, 64},
    {ErrorCode::deadline_exceeded, "deadline_exceeded", RetryClass::later, 69},
    {ErrorCode::not_found, "not_found", RetryClass::never, 64},
    {ErrorCode::already_exists, "already_exists", RetryClass::never, 64},
    {ErrorCode::permission_denied, "permission_denied", RetryClass::never, 64},
    {ErrorCode::resource_exhausted, "resource_exhausted", RetryClass::later, 75},
    {ErrorCode::failed_precondition, "failed_precondition", RetryClass::never, 64},
    {ErrorCode::aborted, "aborted", RetryClass::elsewhere, 75},
    {ErrorCode::out_of_range, "out_of_range", RetryClass::never, 64},
    {ErrorCode::unimplemented, "unimplemented", RetryClass::never, 64},
    {ErrorCode::internal, "internal", RetryClass::never, 70},
    {ErrorCode::unavailable, "unavailable", RetryClass::elsewhere, 69},
    {ErrorCode::data_loss, "data_loss", RetryClass::never, 64},
    {ErrorCode::unauthenticated, "unauthenticated", RetryClass::never, 64},
};

class ErrorCodes : public ::testing::TestWithParam<CodeRow> {};

TEST_P(ErrorCodes, HaveNameRetryClassAndExitCode) {
  const CodeRow& row = GetParam();
  const Error error(row.code, "m");
  EXPECT_EQ(name_of(row.code), row.name);
  EXPECT_EQ(error.retry_class(), row.retry_class);
  EXPECT_EQ(exit_code_of(error), row.exit_code);
}

TEST_P(ErrorCodes, AreNeverRetriedWhenTheApplicationThrewThem) {
  EXPECT_EQ(Error(GetParam().code, "m", ErrorCause::application).retry_class(), RetryClass::never);
}

TEST_P(ErrorCodes, AreRetriedElsewhereWhenThePeerIsLost) {
  EXPECT_EQ(Error(GetParam().code, "m", ErrorCause::peer_lost).retry_class(),
            RetryClass::elsewhere);
}

INSTANTIATE_TEST_SUITE_P(Every, ErrorCodes, ::testing::ValuesIn(kCodes),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(ErrorCodeTable, CoversTheSixteenNumbersOfGrpc) {
  std::set<int> numbers;
  for (const CodeRow& row : kCodes) numbers.insert(static_cast<int>(row.code));
  EXPECT_EQ(numbers.size(), 16U);
  EXPECT_EQ(*numbers.begin(), 1);
  EXPECT_EQ(*numbers.rbegin(), 16);
}

struct CauseRow {
  ErrorCause cause;
  std::string_view name;
  RetryClass retry_class;  // with the code `internal`, which without a cause is never retried
};

constexpr CauseRow kCauses[] = {
    {ErrorCause::none, "none", RetryClass::never},
    {ErrorCause::wrong_type, "wrong_type", RetryClass::never},
    {ErrorCause::peer_lost, "peer_lost", RetryClass::elsewhere},
    {ErrorCause::handle_lost, "handle_lost", RetryClass::elsewhere},
    {ErrorCause::function_missing, "function_missing", RetryClass::elsewhere},
    {ErrorCause::input_binding, "input_binding", RetryClass::never},
    {ErrorCause::cancelled_by_job, "cancelled_by_job", RetryClass::never},
    {ErrorCause::closure_input, "closure_input", RetryClass::never},
    {ErrorCause::closure_aborted, "closure_aborted", RetryClass::elsewhere},
    {ErrorCause::application, "application", RetryClass::never},
    {ErrorCause::must_restart, "must_restart", RetryClass::never},
};

class ErrorCauses : public ::testing::TestWithParam<CauseRow> {};

TEST_P(ErrorCauses, HaveNameAndRetryClass) {
  const CauseRow& row = GetParam();
  EXPECT_EQ(name_of(row.cause), row.name);
  EXPECT_EQ(Error(ErrorCode::internal, "m", row.cause).retry_class(), row.retry_class);
}

INSTANTIATE_TEST_SUITE_P(Every, ErrorCauses, ::testing::ValuesIn(kCauses),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(ErrorNames, OfNumbersFromTheWireThatWeDoNotKnowDoNotCrash) {
  EXPECT_EQ(name_of(static_cast<ErrorCode>(200)), "unknown");
  EXPECT_EQ(name_of(static_cast<ErrorCause>(200)), "none");
}

// When the exit code followed from the code alone, a lost peer's broken answer looked like a
// mistake in the configuration, and so did a kernel that failed in a remote step.
TEST(ExitCode, FollowsTheCauseBeforeTheCode) {
  using enum ErrorCode;
  for (const ErrorCode code : {data_loss, unavailable, aborted, invalid_argument})
    EXPECT_EQ(exit_code_of(Error(code, "m", ErrorCause::peer_lost)), 69) << name_of(code);
  for (const ErrorCode code : {data_loss, invalid_argument, not_found})
    EXPECT_EQ(exit_code_of(Error(code, "m", ErrorCause::application)), 70) << name_of(code);
  EXPECT_EQ(exit_code_of(Error(unavailable, "m", ErrorCause::application)), 69);
  EXPECT_EQ(exit_code_of(Error(resource_exhausted, "m", ErrorCause::peer_lost)), 75);
  // Regression: 64, which says that another start would not help, although the text asks for one.
  for (const ErrorCode code : {unavailable, unimplemented, data_loss})
    EXPECT_EQ(exit_code_of(Error(code, "m", ErrorCause::must_restart)), 75) << name_of(code);
}

TEST(TaskLoss, IsKnownByCodeAndCause) {
  using enum ErrorCode;
  for (const ErrorCode code : {unavailable, deadline_exceeded, aborted}) {
    EXPECT_TRUE(is_task_loss(Error(code, "m")));
    EXPECT_TRUE(is_task_loss(Error(code, "m", ErrorCause::peer_lost)));
    EXPECT_FALSE(is_task_loss(Error(code, "m", ErrorCause::application)));
    EXPECT_FALSE(is_task_loss(Error(code, "m", ErrorCause::must_restart)));
  }
  EXPECT_TRUE(is_task_loss(Error(data_loss, "m", ErrorCause::peer_lost)));
  EXPECT_TRUE(is_task_loss(Error(not_found, "m", ErrorCause::handle_lost)));
  EXPECT_TRUE(is_task_loss(Error(aborted, "m", ErrorCause::closure_aborted)));
  EXPECT_FALSE(is_task_loss(Error(resource_exhausted, "m", ErrorCause::peer_lost)));
  for (const ErrorCode code : {invalid_argument, failed_precondition, data_loss, internal})
    EXPECT_FALSE(is_task_loss(Error(code, "m")));
}

TEST(ErrorText, HasCodeOriginMessageAndContextInnermostFirst) {
  const Error error = Error(ErrorCode::unavailable, "connection reset")
                          .at("ps:0", 7)
                          .during("pull from ps:0")
                          .during("closure 12");
  EXPECT_STREQ(error.what(),
               "unavailable from ps:0: connection reset\n  while pull from ps:0\n"
               "  while closure 12");
  EXPECT_EQ(error.origin(), "ps:0");
  EXPECT_EQ(error.incarnation(), 7U);
  EXPECT_THAT(error.context(), ElementsAre("pull from ps:0", "closure 12"));
  EXPECT_EQ(error.message(), "connection reset");
}

TEST(ErrorText, ShowsControlCharactersAsText) {
  const Error error = Error(ErrorCode::not_found, "no \x1b[31mx").during("look\x07ing");
  EXPECT_STREQ(error.what(), "not_found: no \\x1b[31mx\n  while look\\x07ing");
}

TEST(ErrorText, WithoutOriginStartsWithTheCode) {
  EXPECT_STREQ(Error(ErrorCode::not_found, "no x").what(), "not_found: no x");
}

TEST(ErrorBuilder, BecauseKeepsEverythingElse) {
  const Error error =
      Error(ErrorCode::aborted, "m").at("worker:1").because(ErrorCause::handle_lost);
  EXPECT_EQ(error.cause(), ErrorCause::handle_lost);
  EXPECT_EQ(error.origin(), "worker:1");
}

TEST(Check, ThrowsItsPartsOnlyWhenTheConditionFails) {
  EXPECT_NO_THROW(COHORT_CHECK(1 + 1 == 2, ErrorCode::internal, "no"));
  try {
    COHORT_CHECK(false, ErrorCode::out_of_range, "[x.y] expected ", 3, ", got ", 4);
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_range);
    EXPECT_EQ(error.message(), "[x.y] expected 3, got 4");
  }
}

TEST(Assert, IsAnInternalErrorWithConditionAndPlace) {
  try {
    COHORT_ASSERT(1 > 2);
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::internal);
    EXPECT_THAT(error.message(), HasSubstr("1 > 2"));
    EXPECT_THAT(error.message(), HasSubstr("error_test.cpp"));
  }
}

template <class Thrown>
Error caught(const Thrown& thrown) {
  try {
    throw thrown;
  } catch (...) {
    return current_error();
  }
}

TEST(CurrentError, KeepsOurOwnErrorsUnchanged) {
  const Error error = caught(Error(ErrorCode::aborted, "m").at("worker:1"));
  EXPECT_EQ(error.code(), ErrorCode::aborted);
  EXPECT_EQ(error.origin(), "worker:1");
}

TEST(CurrentError, SaysWhatTheSystemHasTooLittleOf) {
  const auto system = [](std::errc code) {
    return caught(std::system_error(std::make_error_code(code), "write"));
  };
  EXPECT_EQ(caught(std::bad_alloc()).code(), ErrorCode::resource_exhausted);
  EXPECT_EQ(exit_code_of(caught(std::bad_alloc())), 75);
  EXPECT_EQ(system(std::errc::no_space_on_device).code(), ErrorCode::resource_exhausted);
  EXPECT_THAT(system(std::errc::too_many_files_open).message(), HasSubstr("ulimit -n"));
  EXPECT_EQ(system(std::errc::no_such_file_or_directory).code(), ErrorCode::unknown);
  const std::filesystem::filesystem_error full("copy",
                                               std::make_error_code(std::errc::no_space_on_device));
  EXPECT_EQ(caught(full).code(), ErrorCode::resource_exhausted);
}

// After the message came every frame of the stack, of LibTorch, std::function and the library.
TEST(CurrentError, OfLibTorchHasTheMessageWithoutTheStack) {
  try {
    at::zeros({2, 3}).mm(at::zeros({2, 3}));
    FAIL() << "shapes that do not fit";
  } catch (...) {
    const Error error = current_error();
    EXPECT_EQ(error.cause(), ErrorCause::application);
    EXPECT_THAT(error.message(), HasSubstr("cannot be multiplied"));
    EXPECT_THAT(error.message(), ::testing::Not(HasSubstr("frame #")));
    EXPECT_THAT(error.message(), ::testing::Not(HasSubstr("Exception raised from")));
  }
}

TEST(CurrentError, TakesOthersAsApplicationErrors) {
  const Error error = caught(std::runtime_error("boom"));
  EXPECT_EQ(error.cause(), ErrorCause::application);
  EXPECT_EQ(error.message(), "boom");
  EXPECT_EQ(caught(3).cause(), ErrorCause::application);
}

}  // namespace
}  // namespace cohort
