// SPDX-License-Identifier: Apache-2.0
// lookup: converts strings or integers to their indices in a vocabulary.
#include <ATen/ops/empty.h>

#include <filesystem>
#include <span>

#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/data/field_kernels/field_kernel.h"
#include "cohort/data/field_kernels/fingerprint.h"
#include "cohort/data/field_kernels/vocabulary.h"
#include "cohort/data/files/file_access.h"

namespace cohort::data {
namespace {

constexpr std::string_view kLookupName = "lookup";
constexpr std::string_view kTokensSource = ".tokens";
constexpr std::string_view kReservedToken = "[UNK]";  // StringLookup's oov_token

void check_one_vocabulary(const LookupOptions& options) {
  const int given = (options.tokens.empty() ? 0 : 1) + (options.integers.empty() ? 0 : 1) +
                    (options.file.empty() ? 0 : 1);
  COHORT_CHECK(given == 1, ErrorCode::invalid_argument,
               "[data.lookup] expected a vocabulary that is not empty in exactly one of .tokens, "
               ".integers and .file, got ",
               given);
}

// StringLookup.get_vocabulary() returns reserved tokens at the front, which are not part of the
// vocabulary.
void check_reserved(const LookupOptions& options) {
  COHORT_CHECK(options.num_oov_indices == 0 || options.tokens.empty() ||
                   options.tokens.front() != kReservedToken,
               ErrorCode::invalid_argument,
               "[data.lookup] expected .tokens without the token for values that are not in the "
               "vocabulary, got '",
               kReservedToken,
               "' in front; leave it out, since the .num_oov_indices indices stand for it");
}

// The indices before those of the vocabulary: for the mask token, and for values that are not in
// the vocabulary.
class IndexLayout {
 public:
  IndexLayout(std::int64_t num_oov_indices, std::optional<Nest> mask_token, bool has_integers)
      : oov_(num_oov_indices), mask_(std::move(mask_token)) {
    COHORT_CHECK(oov_ >= 0, ErrorCode::invalid_argument,
                 "[data.lookup] expected .num_oov_indices of at least 0, got ", oov_);
    if (!mask_) return;
    const Nest::Kind wanted = has_integers ? Nest::Kind::integer : Nest::Kind::text;
    COHORT_CHECK(mask_->kind() == wanted, ErrorCode::invalid_argument,
                 "[data.lookup] expected .mask_token to be of the vocabulary's kind, ",
                 name_of(wanted), ", got ", name_of(mask_->kind()));
    if (has_integers) {
      mask_integer_ = mask_->integer();
    } else {
      mask_text_ = mask_->text();
    }
  }

  std::int64_t oov_count() const { return oov_; }
  const std::optional<Nest>& mask_token() const { return mask_; }
  std::int64_t oov_begin() const { return mask_ ? 1 : 0; }
  std::int64_t vocabulary_begin() const { return oov_begin() + oov_; }

  bool is_mask(std::string_view token) const { return mask_ && token == mask_text_; }
  bool is_mask(std::int64_t integer) const { return mask_ && integer == mask_integer_; }
  // The index of a value that is not in the vocabulary. Requires at least one such index.
  std::int64_t oov_index(std::string_view token) const {
    if (oov_ == 1) return oov_begin();
    const auto count = static_cast<std::uint64_t>(oov_);
    return oov_begin() + static_cast<std::int64_t>(fingerprint64(token) % count);
  }
  // Like tf.math.floormod: never negative.
  std::int64_t oov_index(std::int64_t integer) const {
    const std::int64_t rest = integer % oov_;
    return oov_begin() + (rest < 0 ? rest + oov_ : rest);
  }

  void check_mask_is_not_in(const Vocabulary& vocabulary) const {
    if (!mask_) return;
    const std::int64_t number =
        vocabulary.has_integers() ? vocabulary.find(mask_integer_) : vocabulary.find(mask_text_);
    COHORT_CHECK(number < 0, ErrorCode::invalid_argument,
                 "[data.lookup] expected a vocabulary without the .mask_token, which has the index "
                 "0, got it as number ",
                 number, " (counted from 0); leave it out");
  }

 private:
  std::int64_t oov_;
  std::optional<Nest> mask_;
  std::string mask_text_;
  std::int64_t mask_integer_ = 0;
};

std::string shown_value(std::string_view token) { return quoted(token); }
std::string shown_value(std::int64_t integer) { return std::to_string(integer); }

// Has a vocabulary in memory, or the path of a file that opened() reads.
class LookupKernel final : public FieldKernel {
 public:
  LookupKernel(IndexLayout layout, std::shared_ptr<const Vocabulary> vocabulary, Nest source)
      : layout_(std::move(layout)), vocabulary_(std::move(vocabulary)), source_(std::move(source)) {
    layout_.check_mask_is_not_in(*vocabulary_);
  }
  LookupKernel(IndexLayout layout, std::string file)
      : layout_(std::move(layout)), file_(std::move(file)) {}

  std::string_view name() const override { return kLookupName; }

  Attributes attributes() const override {
    Attributes all = {{"num_oov_indices", layout_.oov_count()}};
    if (layout_.mask_token()) all.emplace("mask_token", *layout_.mask_token());
    if (file_.empty()) {
      all.emplace("vocabulary", source_);
    } else {
      all.emplace("file", file_);
    }
    return all;
  }

  TensorSpec spec(const TensorSpec& input, const std::string& field) const override {
    if (vocabulary_ && vocabulary_->has_integers()) {
      check_is_integer(input.dtype, field);
    } else {
      check_is_string(input, field);
    }
    return {at::ScalarType::Long, input.sizes};
  }

  // Every run checks whether it may read the file; the first one that may reads it for all runs.
  std::shared_ptr<const FieldKernel> opened(const StageContext& context) const override {
    if (file_.empty()) return shared_from_this();
    const std::string path = allowed_path(file_, context.options(), kLookupName);
    note_opened(context, file_, path, kLookupName);
    const Lock lock(mutex_);
    if (!opened_) {
      opened_ = std::make_shared<const LookupKernel>(layout_, Vocabulary::read(path), Nest());
    }
    return opened_;
  }

  at::Tensor apply(const at::Tensor& values, const std::string& field) const override {
    at::Tensor indices = at::empty(values.sizes(), at::ScalarType::Long);
    auto* out = indices.data_ptr<std::int64_t>();
    if (!vocabulary_->has_integers()) {
      if (!StringTensor::is(values)) check_is_string(TensorSpec::of(values), field);
      const StringTensor strings = StringTensor::of(values);
      fill(strings, strings.numel(), field, out);
      return indices;
    }
    check_is_integer(values.scalar_type(), field);
    const at::Tensor integers = values.to(at::ScalarType::Long).contiguous();
    fill(integers.data_ptr<std::int64_t>(), integers.numel(), field, out);
    return indices;
  }

 private:
  static bool is_integer(at::ScalarType dtype) {
    return dtype != kString && c10::isIntegralType(dtype, false);
  }

  static void check_is_integer(at::ScalarType dtype, const std::string& field) {
    COHORT_CHECK(is_integer(dtype), ErrorCode::invalid_argument,
                 "[data.lookup] expected integers in ", field, ", got ", dtype_name(dtype),
                 dtype == kString ? "; give a vocabulary of strings as .tokens or .file, or"
                                  : ", which has no vocabulary;",
                 " name a field of integers");
  }

  static void check_is_string(const TensorSpec& input, const std::string& field) {
    COHORT_CHECK(input.dtype == kString, ErrorCode::invalid_argument,
                 "[data.lookup] expected strings in ", field, ", got ", input.to_string(),
                 is_integer(input.dtype) ? "; give a vocabulary of numbers as .integers, or"
                                         : ", which has no vocabulary;",
                 " name a field of strings");
  }

  template <class Values>
  void fill(const Values& values, std::int64_t count, const std::string& field,
            std::int64_t* out) const {
    for (std::int64_t i = 0; i < count; ++i) {
      const auto value = values[i];
      if (layout_.is_mask(value)) {
        out[i] = 0;
        continue;
      }
      const std::int64_t number = vocabulary_->find(value);
      if (number >= 0) {
        out[i] = layout_.vocabulary_begin() + number;
        continue;
      }
      COHORT_CHECK(layout_.oov_count() > 0, ErrorCode::invalid_argument,
                   "[data.lookup] expected a value of the vocabulary in ", field, ", got ",
                   shown_value(value), " (value ", i,
                   "); set .num_oov_indices to at least 1 for values that are not in it");
      out[i] = layout_.oov_index(value);
    }
  }

  IndexLayout layout_;
  std::shared_ptr<const Vocabulary> vocabulary_;  // null before the file is read
  Nest source_;                                   // tokens or integers as a tensor
  std::string file_;                              // absolute
  mutable Mutex mutex_;
  mutable std::shared_ptr<const FieldKernel> opened_ COHORT_GUARDED_BY(mutex_);
};

std::shared_ptr<const FieldKernel> lookup_of_tensor(std::int64_t num_oov_indices,
                                                    std::optional<Nest> mask_token,
                                                    const at::Tensor& values) {
  const bool has_integers = !StringTensor::is(values);
  COHORT_CHECK(values.dim() == 1 && values.numel() > 0 &&
                   (!has_integers || values.scalar_type() == at::ScalarType::Long),
               ErrorCode::data_loss,
               "[data.lookup] expected a vocabulary of strings or int64 in one dimension, got ",
               TensorSpec::of(values).to_string());
  IndexLayout layout(num_oov_indices, std::move(mask_token), has_integers);
  if (!has_integers) {
    const StringTensor tokens = StringTensor::of(values);
    return std::make_shared<const LookupKernel>(
        std::move(layout), Vocabulary::of(tokens, std::string(kTokensSource)), values);
  }
  const at::Tensor integers = values.contiguous();
  const auto* begin = integers.data_ptr<std::int64_t>();
  const auto count = static_cast<std::size_t>(integers.numel());
  return std::make_shared<const LookupKernel>(std::move(layout),
                                              Vocabulary::of(std::span(begin, count)), values);
}

std::shared_ptr<const FieldKernel> lookup_kernel(LookupOptions options) {
  check_one_vocabulary(options);
  check_reserved(options);
  if (!options.file.empty()) {
    IndexLayout layout(options.num_oov_indices, std::move(options.mask_token), false);
    return std::make_shared<const LookupKernel>(
        std::move(layout), std::filesystem::absolute(options.file).lexically_normal().string());
  }
  if (!options.tokens.empty()) {
    return lookup_of_tensor(options.num_oov_indices, std::move(options.mask_token),
                            StringTensor(options.tokens));
  }
  const at::Tensor integers =
      at::empty({static_cast<std::int64_t>(options.integers.size())}, at::ScalarType::Long);
  std::copy(options.integers.begin(), options.integers.end(), integers.data_ptr<std::int64_t>());
  return lookup_of_tensor(options.num_oov_indices, std::move(options.mask_token), integers);
}

// The vocabulary uses the tokens of `options` without a copy.
std::shared_ptr<const Vocabulary> vocabulary_of(const LookupOptions& options) {
  if (!options.file.empty()) return Vocabulary::read(options.file);
  if (!options.integers.empty()) return Vocabulary::of(options.integers);
  return Vocabulary::of_kept(options.tokens, std::string(kTokensSource));
}

}  // namespace

FieldFunction lookup(FieldPath field, LookupOptions options) {
  return {std::move(field), lookup_kernel(std::move(options))};
}

std::int64_t vocabulary_size(const LookupOptions& options) {
  check_one_vocabulary(options);
  check_reserved(options);
  const IndexLayout layout(options.num_oov_indices, options.mask_token, !options.integers.empty());
  const auto vocabulary = vocabulary_of(options);
  layout.check_mask_is_not_in(*vocabulary);
  return layout.vocabulary_begin() + vocabulary->size();
}

std::shared_ptr<const FieldKernel> make_lookup_kernel(AttributeReader& attributes) {
  const std::int64_t num_oov_indices = attributes.integer("num_oov_indices");
  std::optional<Nest> mask_token;
  if (attributes.has("mask_token")) mask_token = attributes.nest("mask_token");
  if (attributes.has("file")) {
    return std::make_shared<const LookupKernel>(
        IndexLayout(num_oov_indices, std::move(mask_token), false), attributes.text("file"));
  }
  return lookup_of_tensor(num_oov_indices, std::move(mask_token),
                          attributes.nest("vocabulary").tensor());
}

}  // namespace cohort::data
