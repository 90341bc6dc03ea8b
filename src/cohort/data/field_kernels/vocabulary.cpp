// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/field_kernels/vocabulary.h"

#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/random.h"
#include "cohort/data/field_kernels/field_kernel.h"
#include "cohort/data/files/line_scanner.h"

namespace cohort::data {
namespace {

constexpr std::int64_t kVocabularyReadBytes = 1 << 20;

}  // namespace

std::size_t Vocabulary::IntegerHash::operator()(std::int64_t value) const {
  return mix_seed(static_cast<std::uint64_t>(value), std::uint64_t{0});
}

std::shared_ptr<const Vocabulary> Vocabulary::of(StringTensor tokens, const std::string& source) {
  auto vocabulary = std::make_shared<Vocabulary>();
  vocabulary->tokens_ = std::move(tokens);
  const StringTensor& kept = vocabulary->tokens_;
  COHORT_CHECK(kept.numel() > 0, ErrorCode::invalid_argument,
               "[data.lookup] expected at least one token in ", source, ", got none");
  vocabulary->by_token_.reserve(static_cast<std::size_t>(kept.numel()));
  for (std::int64_t i = 0; i < kept.numel(); ++i) vocabulary->add(kept[i], source);
  return vocabulary;
}

std::shared_ptr<const Vocabulary> Vocabulary::of_kept(std::span<const std::string> tokens,
                                                      const std::string& source) {
  auto vocabulary = std::make_shared<Vocabulary>();
  vocabulary->by_token_.reserve(tokens.size());
  for (const std::string& token : tokens) vocabulary->add(token, source);
  return vocabulary;
}

void Vocabulary::add(std::string_view token, const std::string& source) {
  const auto [entry, is_new] = by_token_.emplace(token, size_);
  COHORT_CHECK(is_new, ErrorCode::invalid_argument, "[data.lookup] expected different tokens in ",
               source, ", got ", quoted(token), " as number ", entry->second, " and as number ",
               size_, " (counted from 0)");
  ++size_;
}

std::shared_ptr<const Vocabulary> Vocabulary::of(std::span<const std::int64_t> integers) {
  auto vocabulary = std::make_shared<Vocabulary>();
  for (const std::int64_t integer : integers) {
    const auto [entry, is_new] = vocabulary->by_integer_.emplace(integer, vocabulary->size_);
    COHORT_CHECK(is_new, ErrorCode::invalid_argument,
                 "[data.lookup] expected different values in .integers, got ", integer,
                 " as number ", entry->second, " and as number ", vocabulary->size_,
                 " (counted from 0)");
    ++vocabulary->size_;
  }
  return vocabulary;
}

std::shared_ptr<const Vocabulary> Vocabulary::read(const std::string& path) {
  const std::string source = "vocabulary file '" + path + "'";
  LineScanner lines(
      BufferedReader(open_stream(path, Compression::none, "lookup"), kVocabularyReadBytes));
  std::string bytes;
  std::vector<std::uint64_t> ends;
  std::string_view line;
  while (lines.next(line)) {
    if (ends.empty() && line.starts_with(kByteOrderMark)) {
      line.remove_prefix(kByteOrderMark.size());
    }
    COHORT_CHECK(!line.empty(), ErrorCode::invalid_argument,
                 "[data.lookup] expected a token in every line of ", source,
                 ", got an empty line as number ", ends.size(), " (counted from 0); remove it");
    bytes += line;
    ends.push_back(bytes.size());
  }
  const auto count = static_cast<std::int64_t>(ends.size());
  return of(StringTensor({count}, std::move(bytes), std::move(ends)), source);
}

}  // namespace cohort::data
