// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/error_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>

namespace cohort {
namespace {

using ::testing::ElementsAre;

Bytes bytes_of(const Error& error) {
  ByteWriter out;
  write_error(out, error);
  return out.take();
}

Error read(const Bytes& bytes) {
  ByteReader in(bytes, "error");
  Error error = read_error(in);
  in.expect_end();
  return error;
}

TEST(ErrorBytes, AnOptionalErrorComesBack) {
  ByteWriter out;
  write_optional_error(out, std::nullopt);
  write_optional_error(out, Error(ErrorCode::aborted, "text"));
  const Bytes bytes = out.take();
  ByteReader in(bytes, "test");
  EXPECT_FALSE(read_optional_error(in).has_value());
  const std::optional<Error> error = read_optional_error(in);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->message(), "text");
  in.expect_end();
}

TEST(ErrorBytes, EachPartOfAnErrorComesBack) {
  const Error sent = Error(ErrorCode::aborted, "text", ErrorCause::handle_lost)
                         .at("ps:1", 1ULL << 63)
                         .during("inner")
                         .during("outer");
  const Error back = read(bytes_of(sent));
  EXPECT_EQ(back.code(), ErrorCode::aborted);
  EXPECT_EQ(back.cause(), ErrorCause::handle_lost);
  EXPECT_EQ(back.message(), "text");
  EXPECT_EQ(back.origin(), "ps:1");
  EXPECT_EQ(back.incarnation(), 1ULL << 63);
  EXPECT_THAT(back.context(), ElementsAre("inner", "outer"));
  EXPECT_STREQ(back.what(), sent.what());
}

TEST(ErrorBytes, EachCodeAndCauseComesBackAndLaterOnesAreUnknown) {
  for (int code = 1; code <= 16; ++code) {
    EXPECT_EQ(static_cast<int>(read(bytes_of(Error(ErrorCode(code), ""))).code()), code);
  }
  for (int cause = 0; cause <= 9; ++cause) {
    const Error error(ErrorCode::internal, "", ErrorCause(cause));
    EXPECT_EQ(static_cast<int>(read(bytes_of(error)).cause()), cause);
  }
  Bytes later = bytes_of(Error(ErrorCode::internal, ""));
  later[0] = std::byte{40};
  later[1] = std::byte{41};
  EXPECT_EQ(read(later).code(), ErrorCode::unknown);
  EXPECT_EQ(read(later).cause(), ErrorCause::none);
}

TEST(ErrorBytes, OnlyTheInnermostLinesOfAVeryLongContextAreRead) {
  Error error(ErrorCode::aborted, "lost");
  for (int line = 0; line < 1000; ++line) {
    error = Error(std::move(error).during(std::to_string(line)));
  }
  const Error back = read(bytes_of(error));
  ASSERT_EQ(back.context().size(), 64U);
  EXPECT_EQ(back.context().front(), "0");
  EXPECT_EQ(back.context().back(), "63");
}

TEST(ErrorBytes, BytesThatEndEarlyAreLost) {
  const Bytes whole = bytes_of(Error(ErrorCode::aborted, "text").at("ps:1").during("inner"));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    try {
      read(cut);
      ADD_FAILURE() << "read an error from " << size << " bytes";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data_loss);
    }
  }
}

TEST(ErrorBytes, AnyExceptionIsAnError) {
  const Error ours(ErrorCode::aborted, "text");
  EXPECT_EQ(error_in(std::make_exception_ptr(ours)).code(), ErrorCode::aborted);
  const Error other = error_in(std::make_exception_ptr(std::runtime_error("text")));
  EXPECT_EQ(other.cause(), ErrorCause::application);
  EXPECT_EQ(other.message(), "text");
}

}  // namespace
}  // namespace cohort
