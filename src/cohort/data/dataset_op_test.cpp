// SPDX-License-Identifier: Apache-2.0
// The conformance suite of dataset ops, and the words their tests are written in.
#include <ATen/Dispatch.h>

#include <sstream>

#include "cohort/data/internal/dataset_op_suite.h"
#include "cohort/data/internal/stage.h"

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

std::string show_tensor(const at::Tensor& tensor) {
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

std::vector<std::string> drain(Stage& stage, std::size_t count_max) {
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

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DatasetOp);

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
  for (const Nest& element : dataset) {
    const ElementSpec exact = ElementSpec::of(element);
    EXPECT_EQ(exact.structure.structure(), dataset.element_spec().structure.structure());
    for (std::size_t i = 0; i < exact.fields.size(); ++i) {
      EXPECT_TRUE(dataset.element_spec().fields[i].accepts(exact.fields[i])) << exact.to_string();
    }
  }
}

TEST_P(DatasetOp, ContinuesWhereItWasSaved) {
  const Dataset dataset = made();
  for (std::size_t taken = 0; taken <= elements_of(dataset).size(); ++taken) {
    const std::unique_ptr<Stage> original = stage_of(dataset);
    drain(*original, taken);
    const Bytes position = saved(*original);
    const std::unique_ptr<Stage> restored = stage_of(dataset);
    ByteReader reader(position, "iterator position");
    restored->restore(reader);
    reader.expect_end();
    EXPECT_EQ(drain(*restored, 10'000), drain(*original, 10'000))
        << "after " << taken << " elements";
  }
}

}  // namespace cohort::data
