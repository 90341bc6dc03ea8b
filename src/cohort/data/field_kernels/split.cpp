// SPDX-License-Identifier: Apache-2.0
// split: splits strings into tokens along a new last dimension.
#include <algorithm>
#include <span>

#include "cohort/core/error.h"
#include "cohort/data/field_kernels/field_kernel.h"

namespace cohort::data {
namespace {

constexpr std::string_view kWhitespace = " \t\n\v\f\r";

void add_words(std::string_view text, std::vector<std::string_view>& tokens) {
  std::size_t begin = text.find_first_not_of(kWhitespace);
  while (begin != std::string_view::npos) {
    const std::size_t end = std::min(text.find_first_of(kWhitespace, begin), text.size());
    tokens.push_back(text.substr(begin, end - begin));
    begin = text.find_first_not_of(kWhitespace, end);
  }
}

void add_parts(std::string_view text, std::string_view separator,
               std::vector<std::string_view>& tokens) {
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = text.find(separator, begin);
    tokens.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return;
    begin = end + separator.size();
  }
}

class SplitKernel final : public FieldKernel {
 public:
  explicit SplitKernel(SplitOptions options) : options_(std::move(options)) {
    COHORT_CHECK(options_.output_sequence_length >= -1, ErrorCode::invalid_argument,
                 "[data.split] expected .output_sequence_length of at least 0, or -1 for as many "
                 "tokens as there are, got ",
                 options_.output_sequence_length);
  }

  std::string_view name() const override { return "split"; }
  Attributes attributes() const override {
    return {{"separator", options_.separator},
            {"output_sequence_length", options_.output_sequence_length}};
  }
  bool is_element_wise() const override { return options_.output_sequence_length >= 0; }

  TensorSpec spec(const TensorSpec& input, const std::string& field) const override {
    check_is_string(input, name(), field);
    TensorSpec split = input;
    if (split.sizes) split.sizes->push_back(options_.output_sequence_length);
    return split;
  }

  at::Tensor apply(const at::Tensor& values, const std::string& field) const override {
    const StringTensor strings = strings_in(values, name(), field);
    std::vector<std::string_view> tokens;
    std::vector<std::size_t> ends;  // the number of tokens up to the end of each string
    std::size_t longest = 0;
    for (std::int64_t i = 0; i < strings.numel(); ++i) {
      const std::size_t begin = tokens.size();
      add_tokens(strings[i], tokens);
      longest = std::max(longest, tokens.size() - begin);
      ends.push_back(tokens.size());
    }
    const std::int64_t wanted = options_.output_sequence_length;
    return padded(values.sizes().vec(), tokens, ends,
                  wanted >= 0 ? static_cast<std::size_t>(wanted) : longest);
  }

 private:
  void add_tokens(std::string_view text, std::vector<std::string_view>& tokens) const {
    if (options_.separator.empty()) {
      add_words(text, tokens);
    } else {
      add_parts(text, options_.separator, tokens);
    }
  }

  // The first `width` tokens of each string.
  static StringTensor padded(std::vector<std::int64_t> sizes,
                             std::span<const std::string_view> tokens,
                             std::span<const std::size_t> ends, std::size_t width) {
    std::string bytes;
    std::vector<std::uint64_t> byte_ends;
    byte_ends.reserve(ends.size() * width);
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      for (std::size_t i = 0; i < width; ++i) {
        if (begin + i < end) bytes += tokens[begin + i];
        byte_ends.push_back(bytes.size());
      }
      begin = end;
    }
    sizes.push_back(static_cast<std::int64_t>(width));
    return {std::move(sizes), std::move(bytes), std::move(byte_ends)};
  }

  SplitOptions options_;
};

}  // namespace

FieldFunction split(FieldPath field, SplitOptions options) {
  return {std::move(field), std::make_shared<const SplitKernel>(std::move(options))};
}

std::shared_ptr<const FieldKernel> make_split_kernel(AttributeReader& attributes) {
  return std::make_shared<const SplitKernel>(
      SplitOptions{.separator = attributes.text("separator"),
                   .output_sequence_length = attributes.integer("output_sequence_length")});
}

}  // namespace cohort::data
