// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/program_supply.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <thread>

#include "cohort/data/program_questions.h"
#include "cohort/data/shipped_dataset.h"
#include "cohort/function/registry.h"
#include "cohort/testing/throws_error.h"

namespace cohort::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::throws_error;

std::unique_ptr<ElementSource> start_shipped(const Bytes& bytes,
                                             const std::shared_ptr<ProgramSupply>& supply) {
  auto source = load_shipped(bytes, supply).source({});
  supply->start();
  return source;
}

std::string text_of(const Fields& fields) {
  std::ostringstream text;
  for (const at::Tensor& field : fields) text << field.sizes() << field << ' ';
  return text.str();
}

// The shape of its result depends on values, so it cannot be traced.
const bool kIsRegistered = [] {
  function::register_function("program_supply_test.cut", [](std::vector<at::Tensor> in) {
    return std::vector<at::Tensor>{in.at(0).masked_select(in.at(1))};
  });
  return true;
}();

// Vectors of these lengths, at most 8: the first numbers of 0 … 7, of 8 … 15, and so on.
Dataset vectors(const std::vector<std::int64_t>& lengths) {
  const auto count = static_cast<std::int64_t>(lengths.size());
  const at::Tensor rows = at::arange(count * 8).view({count, 8});
  const at::Tensor masks = at::arange(8).view({1, 8}).lt(at::tensor(lengths).view({count, 1}));
  return Dataset::from_tensor_slices(Nest::tuple({rows, masks}))
      .map(Function::registered("program_supply_test.cut"));
}

class ProgramSupplyTest : public ::testing::Test {
 protected:
  // The elements as text, with errors in their places.
  std::vector<std::string> all_of(ElementSource& source) {
    std::vector<std::string> elements;
    Fields fields;
    while (true) {
      try {
        if (!source.next(fields)) return elements;
        elements.push_back(text_of(fields));
      } catch (const Error& error) {
        elements.push_back(std::string("error: ") + error.what());
        if (error.code() == ErrorCode::cancelled) return elements;
      }
    }
  }
  // The elements that a worker draws while this thread, as the coordinator, traces programs.
  std::vector<std::string> shipped(const Dataset& dataset) {
    const auto sent = ship_to_workers({dataset}).front();
    ProgramQuestions questions;
    const auto supply =
        std::make_shared<ProgramSupply>([&](const std::string& function, const Fields& element) {
          questions.ask(function, element);
        });
    std::vector<std::string> elements;
    questions.begin_draw();
    std::thread worker([&] {
      elements = all_of(*start_shipped(sent->bytes(), supply));
      questions.end_draw();
    });
    while (const auto question = questions.wait()) {
      asked.push_back(question->function);
      answer(*sent, *question, *supply);
    }
    worker.join();
    return elements;
  }
  static void answer(const ShippedDataset& sent, const ProgramQuestions::Question& question,
                     ProgramSupply& supply) {
    try {
      supply.add(question.function, sent.trace(question.function, question.element));
    } catch (const Error& error) {
      supply.refuse(question.function, specs(question.element), error);
    }
  }
  static std::vector<TensorSpec> specs(const Fields& element) {
    std::vector<TensorSpec> specs;
    for (const at::Tensor& field : element) specs.push_back(TensorSpec::of(field));
    return specs;
  }
  void expect_as_here(const Dataset& dataset) {
    EXPECT_EQ(shipped(dataset), all_of(*dataset.source({})));
  }

  std::vector<std::string> asked;
  const std::vector<std::int64_t> lengths{3, 1, 4, 1, 5, 0, 2, 6, 5, 3, 5, 8};
};

TEST_F(ProgramSupplyTest, ElementsOfOtherShapesKeepTheirPlaces) {
  expect_as_here(vectors(lengths).map([](const at::Tensor& x) { return x * x.size(0); }));
  EXPECT_EQ(asked.size(), 7U) << "each length once, but the first: the pipeline came with that";
}

TEST_F(ProgramSupplyTest, TheyWaitOnAnyThreadOfThePipeline) {
  const auto shifted = [](const at::Tensor& x) { return x + x.size(0); };
  expect_as_here(vectors(lengths)
                     .map(shifted, {.num_parallel_calls = 4})
                     .shuffle(4, {.seed = 1})
                     .repeat(2)
                     .prefetch(2)
                     .filter([](const at::Tensor& x) { return x.sum().remainder(3).ne(0); })
                     .padded_batch(2)
                     .map(shifted)
                     .prefetch(2));
}

TEST_F(ProgramSupplyTest, AFunctionInsideADatasetFunctionIsNamedByItsStep) {
  expect_as_here(vectors(lengths).flat_map([](const at::Tensor& x) {
    return Dataset::from_tensors(x).repeat(2).map([](const at::Tensor& y) { return y.flip({0}); });
  }));
  EXPECT_THAT(asked, ::testing::Each(::testing::MatchesRegex("[0-9]+\\.[0-9]+")));
  EXPECT_FALSE(asked.empty());
}

// The traced program would contain the value of the element for which it was traced.
TEST_F(ProgramSupplyTest, AFunctionThatReadsTheElementAroundItIsRefused) {
  const Dataset dataset = vectors(lengths).flat_map([](const at::Tensor& x) {
    const double first = x.numel() > 0 ? x.flatten()[0].item().toDouble() : 0.0;
    return Dataset::from_tensors(x).map([first](const at::Tensor& y) { return y * first; });
  });
  EXPECT_THROW(ship_to_workers({dataset}), Error);
}

TEST_F(ProgramSupplyTest, WhatTheFunctionThrowsIsTheErrorOfItsElement) {
  const Dataset dataset = vectors({3, 4, 5, 4}).map([](const at::Tensor& x) {
    COHORT_CHECK(x.size(0) != 4, ErrorCode::out_of_range, "four");
    return x;
  });
  const std::vector<std::string> drawn = shipped(dataset);
  ASSERT_EQ(drawn.size(), 4U);
  EXPECT_THAT(drawn[1], AllOf(HasSubstr("four"), HasSubstr("mapping element 1")));
  EXPECT_THAT(drawn[2], HasSubstr("[5]"));
  EXPECT_THAT(drawn[3], HasSubstr("four"));
  EXPECT_EQ(shipped(dataset.ignore_errors()).size(), 2U) << "as here";
}

// Once ignore_errors() took it for bad data and silently dropped the element.
TEST_F(ProgramSupplyTest, ElementsWithoutAProgramAreNotIgnored) {
  const Dataset dataset =
      vectors({3, 4})
          .map([](const at::Tensor& x) { return x.size(0) == 4 ? x + x.sum().item().toLong() : x; })
          .ignore_errors();
  const std::vector<std::string> drawn = shipped(dataset);
  ASSERT_EQ(drawn.size(), 2U);
  EXPECT_THAT(drawn[1], AllOf(HasSubstr("error: "), HasSubstr("tracing 'map function' for an "
                                                              "element int64[4]")));
}

// Its fields would be taken for fields of the first program's structure.
TEST_F(ProgramSupplyTest, AResultOfAnotherStructureIsRefused) {
  const std::vector<std::string> drawn = shipped(vectors({3, 4}).map([](const at::Tensor& x) {
    return x.size(0) == 4 ? Nest::map({{"a", x}, {"b", x + 1}}) : Nest::tuple({x, x + 1});
  }));
  ASSERT_EQ(drawn.size(), 2U);
  EXPECT_THAT(drawn[1], HasSubstr("error: "));
}

TEST_F(ProgramSupplyTest, ACapturedTensorThatWasWrittenToIsRefused) {
  const at::Tensor scale = at::full({}, 2);
  const auto sent = ship_to_workers({vectors(lengths).map([scale](const at::Tensor& x) {
                      return x * scale;
                    })}).front();
  const std::string function = "2";  // after from_tensor_slices and the first map
  EXPECT_FALSE(sent->trace(function, {at::ones({7}, at::kLong)}).empty());
  scale.fill_(3);
  try {
    sent->trace(function, {at::ones({9}, at::kLong)});
    FAIL() << "it was traced";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::failed_precondition);
    EXPECT_EQ(error.cause(), ErrorCause::closure_input);
    EXPECT_THAT(error.what(), HasSubstr("written to"));
  }
}

TEST_F(ProgramSupplyTest, ItsEndWakesWhoWaits) {
  const auto sent =
      ship_to_workers({vectors(lengths).map([](const at::Tensor& x) { return x + 1; })}).front();
  ProgramSupply* waited_for = nullptr;
  const auto supply = std::make_shared<ProgramSupply>(
      [&](const std::string&, const Fields&) { waited_for->end(); });
  waited_for = supply.get();
  const std::vector<std::string> drawn = all_of(*start_shipped(sent->bytes(), supply));
  ASSERT_EQ(drawn.size(), 2U);
  EXPECT_THAT(drawn[1], HasSubstr("the pipeline ended"));
}

TEST_F(ProgramSupplyTest, ARefusalIsOfTheElementThatAskedAlone) {
  const auto sent =
      ship_to_workers({vectors({3, 4, 4}).map([](const at::Tensor& x) { return x + 1; })}).front();
  ProgramSupply* refusing = nullptr;
  int questions = 0;
  const auto supply =
      std::make_shared<ProgramSupply>([&](const std::string& function, const Fields& element) {
        if (++questions == 1)
          return refusing->refuse(function, specs(element), Error(ErrorCode::aborted, "not now"));
        refusing->add(function, sent->trace(function, element));
      });
  refusing = supply.get();
  const std::vector<std::string> drawn = all_of(*start_shipped(sent->bytes(), supply));
  ASSERT_EQ(drawn.size(), 3U);
  EXPECT_THAT(drawn[1], HasSubstr("not now"));
  EXPECT_THAT(drawn[2], HasSubstr("[4]"));
}

TEST_F(ProgramSupplyTest, BytesThatAreNoProgramAreRefused) {
  ProgramSupply supply([](const std::string&, const Fields&) {});
  EXPECT_THAT([&] { supply.add("1", Bytes(3, std::byte{1})); },
              throws_error(ErrorCode::data_loss, ""));
  const auto sent = ship_to_workers({vectors(lengths)}).front();
  for (const char* function : {"", "0", "9", "1.0", "1.", "x"})
    EXPECT_THROW(sent->name_of(function), Error) << function;
}

// Without a ProgramSupply, the error names both shapes and the remedy.
TEST_F(ProgramSupplyTest, WithoutOneTheErrorNamesTheShapesAndPaddedBatch) {
  const Dataset read = Dataset::deserialize(
      vectors({3, 4}).map([](const at::Tensor& x) { return x + 1; }).serialize());
  Iterator iterator = read.iterator();
  iterator.get_next();
  try {
    iterator.get_next();
    FAIL() << "a program of another shape ran";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("int64[3]"), HasSubstr("int64[4]"), HasSubstr("padded_batch")));
  }
}

}  // namespace
}  // namespace cohort::data
