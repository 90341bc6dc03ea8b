// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/closures/iterator_table.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "cohort/data/shipped_dataset.h"
#include "cohort/function/registry.h"
#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort::server {
namespace {

using testing::patience;
using testing::Promised;

TEST(IteratorTable, AnElementIsDrawnOnceWhoeverPeeksAtItMeanwhile) {
  IteratorTable table;
  table.create({.id = 1, .dataset = Dataset::range(100).serialize()}, {});
  Promised<std::vector<Fields>> peeked;
  table.use(1, [&](WorkerIterator& iterator) { peeked.set(iterator.peek(3)); });
  std::vector<std::int64_t> drawn;
  for (int i = 0; i < 100; ++i) drawn.push_back(table.find(1)->next().at(0).item<std::int64_t>());
  for (std::int64_t i = 0; i < 100; ++i) EXPECT_EQ(drawn[static_cast<std::size_t>(i)], i);
  const std::vector<Fields> elements = peeked.wait();
  for (std::size_t i = 1; i < elements.size(); ++i)
    EXPECT_EQ(elements[i][0].item<std::int64_t>(),
              elements[0][0].item<std::int64_t>() + static_cast<std::int64_t>(i));
  EXPECT_TRUE(table.end(patience()));
}

// Regression: peek() threw the error instead of returning the first element, so a caller that
// stopped there lost that element.
TEST(IteratorTable, AnErrorBehindAnElementStaysBehindIt) {
  IteratorTable table;
  function::register_function("iterator_table_test.not_1", [](std::vector<at::Tensor> in) {
    COHORT_CHECK(in[0].item<std::int64_t>() != 1, ErrorCode::invalid_argument, "1");
    return in;
  });
  const Dataset data = Dataset::range(3).map(Function::registered("iterator_table_test.not_1"));
  table.create({.id = 1, .dataset = data.serialize()}, {});
  Promised<std::vector<Fields>> peeked;
  table.use(1, [&](WorkerIterator& iterator) { peeked.set(iterator.peek(2)); });
  EXPECT_EQ(peeked.wait().size(), 1);
  const auto next = [&] { return table.find(1)->next().at(0).item<std::int64_t>(); };
  EXPECT_EQ(next(), 0);
  EXPECT_THROW(next(), Error);
  EXPECT_EQ(next(), 2);
  EXPECT_TRUE(table.end(patience()));
}

// Regression: the error was that of the frame, whose type could not be sent.
TEST(IteratorTable, PeekingAtStringsNamesThemAndWhatTurnsThemIntoNumbers) {
  IteratorTable table;
  const Dataset data =
      Dataset::from_tensor_slices(Nest::map({{"city", StringTensor({2}, {"Lima", "Rome"})}}));
  table.create({.id = 1, .dataset = data.serialize()}, {});
  EXPECT_THAT([&] { table.find(1)->peek(2); },
              testing::throws_error(ErrorCode::invalid_argument,
                                    "strings in field 'city' of {city: string[]}; turn strings"));
  EXPECT_EQ(StringTensor::of(table.find(1)->next().at(0)).value(), "Lima") << "was not taken";
}

TEST(IteratorTable, AValueIsMadeOnceAndDrawnAnyNumberOfTimes) {
  IteratorTable table;
  static std::atomic<int> calls;
  function::register_function("iterator_table_test.made_once", [](std::vector<at::Tensor> in) {
    ++calls;
    return in;
  });
  const Dataset data =
      Dataset::range(3, {.start = 2}).map(Function::registered("iterator_table_test.made_once"));
  calls = 0;
  table.create({.id = 1, .dataset = data.serialize(), .is_value = true}, {});
  EXPECT_EQ(table.find(1)->peek(2).size(), 1U);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(table.find(1)->next().at(0).item<std::int64_t>(), 2);
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(table.end(patience()));
}

TEST(IteratorTable, AValueThatCannotBeMadeIsABrokenResource) {
  IteratorTable table;
  static std::atomic<bool> is_failing = false;
  function::register_function("iterator_table_test.fails", [](std::vector<at::Tensor> in) {
    COHORT_CHECK(!is_failing, ErrorCode::permission_denied, "not here");
    return in;
  });
  const Dataset data = Dataset::range(1).map(Function::registered("iterator_table_test.fails"));
  is_failing = true;
  table.create({.id = 1, .dataset = data.serialize(), .is_value = true}, {});
  table.find(1)->check_usable();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT([&] { table.find(1)->next(); },
                testing::throws_error(ErrorCode::failed_precondition, "not here"));
    EXPECT_THAT([&] { table.find(1)->check_usable(); },
                testing::throws_error(ErrorCode::failed_precondition, "not here"));
    is_failing = false;
  }
  EXPECT_TRUE(table.end(patience()));
}

// The error had the code of its reason, and a step that drew nothing did not see it.
TEST(IteratorTable, APipelineThatCannotBeBuiltIsABrokenResource) {
  IteratorTable table;
  table.create({.id = 1, .dataset = Bytes(3, std::byte{7})}, {});
  try {
    table.find(1)->check_usable();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::failed_precondition) << error.what();
    EXPECT_EQ(error.cause(), ErrorCause::closure_input);
  }
}

class PositionsTest : public ::testing::Test {
 protected:
  explicit PositionsTest(const Dataset& data = Dataset::range(50).shuffle(20, {.seed = 3}))
      : iterator({.id = 1, .dataset = data.serialize()}, {.seed = 7, .iteration = 0}, {}) {}
  std::optional<std::int64_t> at(std::uint64_t position) {
    const std::optional<Fields> fields = iterator.at(position);
    return fields ? std::optional(fields->at(0).item<std::int64_t>()) : std::nullopt;
  }
  WorkerIterator iterator;
};

TEST_F(PositionsTest, AnElementThatIsAskedForAgainIsTheSame) {
  std::vector<std::optional<std::int64_t>> order;
  for (std::uint64_t i = 0; i < 52; ++i) order.push_back(at(i));
  EXPECT_EQ(order[50], std::nullopt);
  EXPECT_EQ(order[51], std::nullopt);
  for (const std::uint64_t i : {40U, 3U, 3U, 49U, 0U}) EXPECT_EQ(at(i), order[i]) << i;
}

TEST_F(PositionsTest, ElementsBetweenArePassedOver) {
  std::vector<std::optional<std::int64_t>> order;
  for (std::uint64_t i = 0; i < 50; ++i) order.push_back(at(i));
  WorkerIterator fresh(
      {.id = 1, .dataset = Dataset::range(50).shuffle(20, {.seed = 3}).serialize()},
      {.seed = 7, .iteration = 0}, {});
  EXPECT_EQ(fresh.at(30)->at(0).item<std::int64_t>(), order[30]);
}

TEST_F(PositionsTest, WhatWasPeekedAtKeepsItsPosition) {
  const std::vector<Fields> peeked = iterator.peek(2);
  EXPECT_EQ(at(1), peeked[1][0].item<std::int64_t>());
  EXPECT_EQ(at(0), peeked[0][0].item<std::int64_t>());
}

TEST(IteratorTable, AnErrorHasAPositionOfItsOwn) {
  function::register_function("iterator_table_test.odd", [](std::vector<at::Tensor> in) {
    COHORT_CHECK(in[0].item<std::int64_t>() % 2 == 1, ErrorCode::invalid_argument, "even");
    return in;
  });
  const Dataset data = Dataset::range(5).map(Function::registered("iterator_table_test.odd"));
  WorkerIterator iterator({.id = 1, .dataset = data.serialize()}, {}, {});
  EXPECT_THROW(iterator.peek(2), Error);
  EXPECT_THROW(iterator.at(0), Error) << "also for who was not the one that peeked";
  EXPECT_EQ(iterator.at(3)->at(0).item<std::int64_t>(), 3);
  EXPECT_EQ(iterator.at(1)->at(0).item<std::int64_t>(), 1);
  EXPECT_EQ(iterator.at(5), std::nullopt);
}

TEST(IteratorTable, TheEndSaysAfterHowManyElements) {
  WorkerIterator iterator({.id = 1, .dataset = Dataset::range(2).serialize()}, {}, {});
  iterator.next();
  iterator.next();
  EXPECT_THAT([&] { iterator.next(); },
              testing::throws_error(ErrorCode::out_of_range, "after 2 elements; "));
}

// The shape of its result depends on values, so it cannot be traced.
const bool kIsRegistered = [] {
  function::register_function("iterator_table_test.counted", [](std::vector<at::Tensor> in) {
    return std::vector<at::Tensor>{at::arange(in.at(0).item<std::int64_t>() + 1)};
  });
  return true;
}();

// A pipeline whose second element has a shape for which its function was not traced.
Dataset data_of_two_shapes() {
  return Dataset::range(2)
      .map(Function::registered("iterator_table_test.counted"))
      .map([](const at::Tensor& x) { return x + 1; });
}

rpc::IteratorSpec spec_of_two_shapes() {
  return {.id = 1, .dataset = data_of_two_shapes().serialize()};
}

// Regression: the thread that waited for a program, and the closure that drew, were left behind.
TEST(IteratorTable, ADrawThatWaitsForAProgramGivesUpAtItsEnd) {
  IteratorTable table;
  Promised<bool> has_asked;
  table.create(spec_of_two_shapes(), {},
               [&](const std::string& function, const Fields&) { has_asked.set(function == "2"); });
  Promised<ErrorCode> code;
  table.use(1, [&](WorkerIterator& iterator) {
    iterator.next();
    try {
      iterator.next();
    } catch (const Error& error) {
      code.set(error.code());
    }
  });
  EXPECT_TRUE(has_asked.wait());
  table.take({.resource = 9});  // for an iterator that was released
  table.create({.id = 1, .dataset = Dataset::range(1).serialize()}, {});
  EXPECT_EQ(code.wait(), ErrorCode::cancelled);
  EXPECT_TRUE(table.end(patience()));
}

TEST(IteratorTable, APipelineThatIsBuiltAgainKeepsItsPrograms) {
  const auto shipped = data::ship_to_workers({data_of_two_shapes()}).front();
  int questions = 0;
  WorkerIterator* asking = nullptr;
  WorkerIterator iterator(
      {.id = 1, .dataset = shipped->bytes()}, {},
      [&](const std::string& function, const Fields& element) {
        ++questions;
        asking->take({.function = function, .program = shipped->trace(function, element)});
      });
  asking = &iterator;
  EXPECT_EQ(iterator.at(1)->at(0).size(0), 2);
  EXPECT_EQ(iterator.at(0)->at(0).size(0), 1);
  EXPECT_EQ(iterator.at(1)->at(0).size(0), 2);
  EXPECT_EQ(questions, 1);
}

// The end makes a draw fail; ignore_errors() must not replace that element by the next one.
TEST(IteratorTable, NothingIsDrawnAfterTheEnd) {
  WorkerIterator* asking = nullptr;
  WorkerIterator iterator(
      {.id = 1, .dataset = data_of_two_shapes().repeat().ignore_errors().serialize()}, {},
      [&](const std::string&, const Fields&) { asking->end(); });
  asking = &iterator;
  iterator.next();
  EXPECT_THAT([&] { iterator.next(); },
              testing::throws_error(ErrorCode::cancelled, "whose coordinator has ended"));
  EXPECT_THAT([&] { iterator.at(9); },
              testing::throws_error(ErrorCode::cancelled, "whose coordinator has ended"));
}

TEST(IteratorTable, AnErrorForAProgramTakesTheElementsPlace) {
  IteratorTable table;
  table.create(spec_of_two_shapes(), {}, [&](const std::string& function, const Fields& element) {
    rpc::ProgramReply reply{.resource = 1,
                            .function = function,
                            .element = {TensorSpec::of(element.at(0))},
                            .program = Bytes(2, std::byte{7})};
    table.take(reply);
  });
  table.find(1)->next();
  try {
    table.find(1)->next();
    FAIL() << "no program came";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data_loss);
    EXPECT_EQ(error.cause(), ErrorCause::closure_input);
  }
  EXPECT_TRUE(table.end(patience()));
}

class ChangedFileTest : public ::testing::Test {
 protected:
  ChangedFileTest() {
    std::string pattern = ::testing::TempDir() + "changed_XXXXXX";
    directory = ::mkdtemp(pattern.data());
    write("11\n22\n33\n");
  }
  ~ChangedFileTest() override { std::filesystem::remove_all(directory); }
  std::string path() const { return directory + "/rows"; }
  void write(const std::string& text) const {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << text;
  }
  // `files`: those that an earlier start of this worker has read.
  rpc::IteratorSpec spec(std::optional<std::uint64_t> epoch,
                         std::vector<FileFingerprint> files = {}) const {
    const Dataset lines = Dataset::csv(StringTensor(path()), {.columns = {{.dtype = at::kLong}}});
    return {.id = 1,
            .dataset = lines.ignore_errors().serialize(),
            .epoch = epoch,
            .files = std::move(files)};
  }

  std::string directory;
};

// Regression: the epoch continued at its element number in changed rows.
TEST_F(ChangedFileTest, EndsAnEpochThatContinues) {
  WorkerIterator first(spec(0), {}, {});
  EXPECT_EQ(first.at(0)->at(0).item<std::int64_t>(), 11);
  const std::vector<FileFingerprint> files = first.files()->take_new();
  EXPECT_EQ(files.size(), 1U);
  write("44\n11\n22\n33\n");
  WorkerIterator second(spec(0, files), {}, {});
  for (const std::uint64_t position : {1U, 0U, 2U})
    EXPECT_THAT([&] { second.at(position); },
                testing::throws_error(ErrorCode::data_loss, "expected 9 bytes, got 12 bytes"));
}

TEST_F(ChangedFileTest, EndsAnEpochWhosePipelineIsBuiltAgainInTheSameProcess) {
  WorkerIterator iterator(spec(0), {}, {});
  EXPECT_EQ(iterator.at(1)->at(0).item<std::int64_t>(), 22);
  write("11\n22\n34\n");
  EXPECT_THAT([&] { iterator.at(0); },
              testing::throws_error(ErrorCode::data_loss, "'" + path() + "'"));
}

TEST_F(ChangedFileTest, IsReadAsItIsByAnIteratorThatBeginsAgain) {
  WorkerIterator first(spec(std::nullopt), {}, {});
  EXPECT_EQ(first.next().at(0).item<std::int64_t>(), 11);
  EXPECT_EQ(first.files(), nullptr);
  write("44\n");
  WorkerIterator second(spec(std::nullopt), {}, {});
  EXPECT_EQ(second.next().at(0).item<std::int64_t>(), 44);
}

TEST_F(ChangedFileTest, ThatIsTheSameAgainContinuesTheEpoch) {
  WorkerIterator first(spec(0), {}, {});
  first.at(0);
  std::filesystem::remove(path());
  write("11\n22\n33\n");
  WorkerIterator second(spec(0, first.files()->take_new()), {}, {});
  EXPECT_EQ(second.at(2)->at(0).item<std::int64_t>(), 33);
}

// Regression: the end waited until the buffer was filled, and left threads behind with a warning.
TEST(IteratorTable, ItsEndInterruptsAFill) {
  IteratorTable table;
  static Promised<bool> has_begun;
  static std::atomic<int> calls{0};
  function::register_function("iterator_table_test.never", [](std::vector<at::Tensor>) {
    if (++calls == 100) has_begun.set(true);
    return std::vector<at::Tensor>{at::zeros({}, at::kBool)};
  });
  const Dataset data = Dataset::range(std::int64_t{1} << 40)
                           .filter(Function::registered("iterator_table_test.never"))
                           .prefetch(2);
  table.create({.id = 1, .dataset = data.serialize()}, {});
  Promised<ErrorCode> code;
  table.use(1, [&](WorkerIterator& iterator) {
    try {
      iterator.next();
    } catch (const Error& error) {
      code.set(error.code());
    }
  });
  has_begun.wait();
  EXPECT_TRUE(table.end(patience()));
  EXPECT_EQ(IteratorTable::left_behind(), 0);
  EXPECT_EQ(code.wait(), ErrorCode::cancelled);
}

TEST(IteratorTable, ItsEndWaitsForWhoUsesOne) {
  IteratorTable table;
  table.create({.id = 1, .dataset = Dataset::range(1).serialize()}, {});
  Promised<bool> is_used, may_end;
  table.use(1, [&](WorkerIterator&) {
    is_used.set(true);
    may_end.wait();
  });
  is_used.wait();
  EXPECT_FALSE(table.end(Deadline::after(Duration::zero())));
  EXPECT_GE(IteratorTable::left_behind(), 1);
  may_end.set(true);
  EXPECT_TRUE(table.end(patience()));
}

}  // namespace
}  // namespace cohort::server
