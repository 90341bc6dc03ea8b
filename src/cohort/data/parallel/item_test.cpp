// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/parallel/item.h"

#include <gmock/gmock.h>

#include "cohort/core/error.h"
#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;

// Regression: the message was lost, since the error was assigned to itself.
TEST(Item, KeepsAllOfAnErrorWhereItIsSaved) {
  const Error original =
      Error(ErrorCode::data_loss, "a message longer than a short string", ErrorCause::application)
          .at("worker:3", 7)
          .during("reading a file of that name")
          .during("x");
  ByteWriter writer;
  write_item(writer, {.fields = {}, .error = std::make_exception_ptr(original)});
  const Bytes bytes = writer.take();
  ByteReader reader(bytes, "item");
  Item item = read_item(reader);
  const Error restored = error_of([&] { std::move(item).take(); });
  EXPECT_EQ(restored.code(), ErrorCode::data_loss);
  EXPECT_EQ(restored.cause(), ErrorCause::application);
  EXPECT_EQ(restored.message(), original.message());
  EXPECT_EQ(restored.origin(), "worker:3");
  EXPECT_EQ(restored.incarnation(), 7U);
  EXPECT_THAT(restored.context(), ElementsAre("reading a file of that name", "x"));
  EXPECT_STREQ(restored.what(), original.what());
}

}  // namespace
}  // namespace cohort::data
