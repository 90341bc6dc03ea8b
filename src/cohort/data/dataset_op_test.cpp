// SPDX-License-Identifier: Apache-2.0
// The conformance suite of dataset ops, and the helper functions of their tests.
#include <ATen/Dispatch.h>

#include <cctype>
#include <set>
#include <sstream>

#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/data/ops/op_registry.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

template <class T>
std::string show_values(const at::Tensor& tensor, std::int64_t dim, const T*& next) {
  std::ostringstream text;
  if (dim == tensor.dim()) {
    text << +*next++;
    return text.str();
  }
  text << "[";
  for (std::int64_t i = 0; i < tensor.size(dim); ++i) {
    text << (i > 0 ? ", " : "") << show_values(tensor, dim + 1, next);
  }
  text << "]";
  return text.str();
}

std::string show_strings(const StringTensor& strings, std::size_t dim, std::int64_t& next) {
  if (dim == strings.sizes().size()) return "'" + std::string(strings[next++]) + "'";
  std::string text;
  for (std::int64_t i = 0; i < strings.sizes()[dim]; ++i) {
    text += (i > 0 ? ", " : "") + show_strings(strings, dim + 1, next);
  }
  return "[" + text + "]";
}

std::string show_tensor(const at::Tensor& tensor) {
  if (StringTensor::is(tensor)) {
    std::int64_t next = 0;
    return show_strings(StringTensor::of(tensor), 0, next);
  }
  const at::Tensor dense = tensor.contiguous();
  std::string text;
  AT_DISPATCH_ALL_TYPES_AND(at::ScalarType::Bool, dense.scalar_type(), "show", [&] {
    const scalar_t* next = dense.data_ptr<scalar_t>();
    text = show_values(dense, 0, next);
  });
  return text;
}

std::unique_ptr<Stage> stage_of(const Dataset& dataset) {
  return dataset.node()->start(StageContext({.seed = 7, .data_dirs = std::nullopt}, Purpose::run));
}

std::vector<std::string> drain_stage(Stage& stage, std::size_t count_max) {
  std::vector<std::string> items;
  Fields fields;
  while (items.size() < count_max && stage.next(fields)) items.push_back(show(stage.pack(fields)));
  return items;
}

Bytes saved(const Stage& stage) {
  ByteWriter writer;
  stage.save(writer);
  return writer.take();
}

// "text_line" becomes "TextLine".
std::string in_pascal_case(std::string_view name) {
  std::string result;
  bool is_first = true;
  for (const char c : name) {
    if (c != '_') result += is_first ? static_cast<char>(std::toupper(c)) : c;
    is_first = c == '_';
  }
  return result;
}

}  // namespace

std::string show(const Nest& element) {
  if (element.is_tensor()) return show_tensor(element.tensor());
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (element.kind() == Nest::Kind::map) {
    for (const auto& [key, value] : element.entries()) add(key + ": " + show(value));
    return "{" + text + "}";
  }
  for (const Nest& item : element.items()) add(show(item));
  return "(" + text + ")";
}

std::vector<std::string> drain(Iterator& iterator, std::size_t count_max) {
  std::vector<std::string> items;
  while (items.size() < count_max) {
    try {
      const auto element = iterator.try_next();
      if (!element) break;
      items.push_back(show(*element));
    } catch (const Error& error) {
      items.push_back("error " + std::string(name_of(error.code())));
    }
  }
  return items;
}

std::vector<std::string> elements_of(const Dataset& dataset, std::size_t count_max) {
  Iterator iterator = dataset.iterator();
  return drain(iterator, count_max);
}

std::vector<std::int64_t> scalars_of(const Dataset& dataset, std::size_t count_max) {
  std::vector<std::int64_t> values;
  Iterator iterator = dataset.iterator();
  while (values.size() < count_max) {
    const auto element = iterator.try_next();
    if (!element) break;
    values.push_back(*element->tensor().data_ptr<std::int64_t>());
  }
  return values;
}

Error error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "expected an error, got none";
  return Error(ErrorCode::unknown, "no error");
}

Dataset rows(std::int64_t count) { return Dataset::range(count); }

Dataset tensors(std::int64_t count) {
  return Dataset::range(count).map([](at::Tensor x) { return x; });
}

Dataset failing_at(std::int64_t bad, std::int64_t count) {
  return rows(count).map([bad](at::Tensor x) {
    COHORT_CHECK(x.item<std::int64_t>() != bad, ErrorCode::data_loss, "bad element");
    return x;
  });
}

Dataset generated(std::vector<Nest> items, ElementSpec spec) {
  const auto make = [items = std::move(items)]() -> Generator {
    return [items, next = std::size_t{0}](Nest& element) mutable {
      if (next == items.size()) return false;
      element = items[next++];
      return true;
    };
  };
  return Dataset::from_generator(make, std::move(spec));
}

Dataset shipped(const Dataset& dataset) { return Dataset::deserialize(dataset.serialize()); }

// A new op without a line of its own was not tested.
TEST(OpRegistry, EveryOpHasALineOfTheConformanceSuite) {
  std::set<std::string> tested = {"ParallelBatch/DatasetOp"};  // the case "Parallel" of Batch
  const ::testing::UnitTest& tests = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < tests.total_test_suite_count(); ++i)
    tested.insert(tests.GetTestSuite(i)->name());
  ASSERT_FALSE(op_registry().empty());
  for (const Op& op : op_registry()) {
    EXPECT_TRUE(tested.contains(in_pascal_case(op.name) + "/DatasetOp")) << op.name;
  }
}

TEST_P(DatasetOp, YieldsTheSameElementsAfterAJourney) {
  if (!GetParam().can_ship) GTEST_SKIP() << "runs only where it was built";
  const Dataset arrived = Dataset::deserialize(made().serialize());
  EXPECT_EQ(elements_of(arrived), elements_of(made()));
  EXPECT_EQ(arrived.cardinality(), made().cardinality());
  EXPECT_EQ(arrived.element_spec().to_string(), made().element_spec().to_string());
}

TEST_P(DatasetOp, IsTheSameBytesWhenShippedOn) {
  if (!GetParam().can_ship) GTEST_SKIP() << "runs only where it was built";
  const Bytes bytes = made().serialize();
  EXPECT_EQ(Dataset::deserialize(bytes).serialize(), bytes);
}

TEST_P(DatasetOp, StaysAtItsEnd) {
  Iterator iterator = made().iterator();
  drain(iterator);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(iterator.try_next().has_value());
}

TEST_P(DatasetOp, HasIndependentIterators) {
  if (!GetParam().is_independent) GTEST_SKIP() << "its iterators share a cache or an order";
  const Dataset dataset = made();
  const std::vector<std::string> whole = elements_of(made());
  Iterator ahead = dataset.iterator();
  const bool has_first = ahead.try_next().has_value();
  EXPECT_EQ(elements_of(dataset), whole);
  EXPECT_EQ(drain(ahead).size() + (has_first ? 1 : 0), whole.size());
}

TEST_P(DatasetOp, YieldsAsManyElementsAsItSays) {
  const std::int64_t expected = made().cardinality();
  if (expected < 0) GTEST_SKIP() << "cardinality is not known";
  EXPECT_EQ(static_cast<std::int64_t>(elements_of(made()).size()), expected);
}

TEST_P(DatasetOp, YieldsElementsOfItsSpec) {
  const Dataset dataset = made();
  std::int64_t count = 0;
  for (const Nest& element : dataset) {
    ++count;
    const ElementSpec exact = ElementSpec::of(element);
    EXPECT_EQ(exact.structure.structure(), dataset.element_spec().structure.structure());
    for (std::size_t i = 0; i < exact.fields.size(); ++i) {
      EXPECT_TRUE(dataset.element_spec().fields[i].accepts(exact.fields[i])) << exact.to_string();
    }
  }
  EXPECT_EQ(count == 0, GetParam().is_empty) << count << " elements";
}

TEST_P(DatasetOp, PassesOverAsManyElementsAsItYields) {
  const Dataset dataset = made();
  const std::vector<std::string> whole = drain_stage(*stage_of(dataset), 10'000);
  for (std::size_t taken = 0; taken <= whole.size(); ++taken) {
    const std::unique_ptr<Stage> stage = stage_of(dataset);
    drain_stage(*stage, taken);
    const std::size_t left = whole.size() - taken;
    EXPECT_EQ(stage->skip(1), left > 0 ? 1 : 0);
    EXPECT_EQ(static_cast<std::size_t>(stage->skip(static_cast<std::int64_t>(left) + 1)),
              left > 0 ? left - 1 : 0);
  }
}

TEST_P(DatasetOp, ContinuesBehindWhatItPassesOver) {
  const Dataset dataset = made();
  const std::size_t count = elements_of(dataset).size();
  for (std::size_t passed = 0; passed <= count; ++passed) {
    const std::unique_ptr<Stage> read = stage_of(dataset);
    const std::unique_ptr<Stage> skipped = stage_of(dataset);
    drain_stage(*read, passed);
    skipped->skip(static_cast<std::int64_t>(passed));
    EXPECT_EQ(drain_stage(*skipped, 10'000), drain_stage(*read, 10'000)) << "behind " << passed;
  }
}

TEST_P(DatasetOp, ContinuesWhereItWasSaved) {
  if (!GetParam().can_save) GTEST_SKIP() << "has no position";
  const Dataset dataset = made();
  for (std::size_t taken = 0; taken <= elements_of(dataset).size(); ++taken) {
    const std::unique_ptr<Stage> original = stage_of(dataset);
    drain_stage(*original, taken);
    const Bytes position = saved(*original);
    const std::unique_ptr<Stage> restored = stage_of(dataset);
    ByteReader reader(position, "iterator position");
    restored->restore(reader);
    reader.expect_end();
    EXPECT_EQ(drain_stage(*restored, 10'000), drain_stage(*original, 10'000))
        << "after " << taken << " elements";
  }
}

}  // namespace cohort::data
