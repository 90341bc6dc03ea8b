// SPDX-License-Identifier: Apache-2.0
// Parses tf.train.Example and SequenceExample as values and as tensors, which must agree.
#include <cstring>
#include <vector>

#include "cohort/data/example.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

// Checks that a message is unchanged after writing and reading. Compares bytes, because of NaN.
template <class Message>
std::optional<Message> check_journey(const std::string& bytes) {
  std::optional<Message> message;
  only_fails_with({ErrorCode::invalid_argument}, [&] { message = Message::parse(bytes); });
  if (message) {
    const std::string written = message->serialize();
    require(Message::parse(written).serialize() == written, "a message changed on its journey");
  }
  return message;
}

bool holds(const at::Tensor& tensor, const Int64List& values) {
  return tensor.numel() == static_cast<std::int64_t>(values.size()) &&
         (values.empty() || std::memcmp(tensor.data_ptr(), values.data(), 8 * values.size()) == 0);
}
bool holds(const at::Tensor& tensor, const FloatList& values) {
  return tensor.numel() == static_cast<std::int64_t>(values.size()) &&
         (values.empty() || std::memcmp(tensor.data_ptr(), values.data(), 4 * values.size()) == 0);
}
bool holds(const at::Tensor& tensor, const BytesList& values) {
  return StringTensor::of(tensor).values() == values;
}

template <class List>
void check_feature(const Features& features, const Nest& parsed, const std::string& name) {
  const auto found = features.find(name);
  const bool is_empty =
      found == features.end() || std::holds_alternative<std::monostate>(found->second);
  const List values = is_empty ? List() : std::get<List>(found->second);
  require(holds(parsed.entries().at(name).tensor(), values), "a tensor differs from its feature");
}

template <class List>
bool fits(const Features& features, const std::string& name) {
  const auto found = features.find(name);
  return found == features.end() || std::holds_alternative<List>(found->second) ||
         std::holds_alternative<std::monostate>(found->second);
}

void check_tensors(const std::string& bytes, const std::optional<Example>& example) {
  static const ExampleParser kParser({{"i", {.dtype = at::kLong, .is_variable_length = true}},
                                      {"f", {.dtype = at::kFloat, .is_variable_length = true}},
                                      {"b", {.dtype = kString, .is_variable_length = true}}});
  Nest parsed;
  const bool is_parsed = only_fails_with({ErrorCode::invalid_argument},
                                         [&] { parsed = kParser.parse(StringTensor(bytes)); });
  if (!example) return;  // the invalid feature may be one that kParser does not read
  const Features& features = example->features;
  const bool must_parse = fits<Int64List>(features, "i") && fits<FloatList>(features, "f") &&
                          fits<BytesList>(features, "b");
  require(is_parsed == must_parse, "values and tensors do not agree on what is an Example");
  if (!is_parsed) return;
  check_feature<Int64List>(features, parsed, "i");
  check_feature<FloatList>(features, parsed, "f");
  check_feature<BytesList>(features, parsed, "b");
}

// Batches with features of fixed sizes and defaults.
void check_batch(const std::string& bytes) {
  static const ExampleParser kParser({{"i", {.dtype = at::kLong, .default_value = Nest(-1)}},
                                      {"f", {.dtype = at::kFloat, .sizes = {2}}},
                                      {"b", {.dtype = kString, .is_variable_length = true}}});
  static const std::string kOther =
      Example{{{"i", Int64List{1}}, {"f", FloatList{1, 2}}, {"b", BytesList{"x"}}}}.serialize();
  only_fails_with({ErrorCode::invalid_argument}, [&] {
    const Nest batch = kParser.parse(StringTensor({3}, {kOther, bytes, kOther}));
    require(batch.entries().at("f").tensor().numel() == 6, "a batch of other sizes");
  });
}

void run(Input input) {
  const std::string bytes(input.rest());
  check_tensors(bytes, check_journey<Example>(bytes));
  check_batch(bytes);
  check_journey<SequenceExample>(bytes);
}

}  // namespace
}  // namespace cohort::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cohort::fuzz::run({data, size});
  return 0;
}
