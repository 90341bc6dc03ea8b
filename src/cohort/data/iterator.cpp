// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/iterator.h"

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"

namespace cohort {
namespace {

// If the spec cannot be found (a function that fails on every example), positions are not compared
// by spec.
std::string spec_text(const data::ElementSource& source) {
  try {
    return source.spec().to_string();
  } catch (const Error&) {
    return "an unknown spec";
  }
}

// In place of a source whose position was restored in part, which could yield wrong elements.
class LostSource final : public data::ElementSource {
 public:
  explicit LostSource(std::unique_ptr<data::ElementSource> source) : source_(std::move(source)) {}
  const ElementSpec& spec() const override { return source_->spec(); }
  bool next(Fields&) override { refuse(); }
  std::string pipeline() const override { refuse(); }

 private:
  [[noreturn]] static void refuse() {
    throw Error(ErrorCode::failed_precondition,
                "[data.iterator] expected an iterator with a position, got one whose restore() has "
                "failed; make a new iterator");
  }

  const std::unique_ptr<data::ElementSource> source_;
};

}  // namespace

void data::ElementSource::save(ByteWriter&) const {
  internal::throw_error(ErrorCode::unimplemented,
                        "[data.save] expected a source of elements whose position can be saved");
}

void data::ElementSource::restore(ByteReader&) {
  internal::throw_error(ErrorCode::unimplemented,
                        "[data.restore] expected a source of elements that can take up a position");
}

data::Optional Iterator::get_next_as_optional() {
  std::optional<Nest> element = try_next();
  return element ? data::Optional::from_value(std::move(*element))
                 : data::Optional::empty(element_spec());
}

Bytes Iterator::save() const {
  ByteWriter writer;
  writer.text(source_->pipeline());
  writer.text(spec_text(*source_));
  source_->save(writer);
  return writer.take();
}

void Iterator::restore(std::span<const std::byte> position) {
  ByteReader reader(position, "iterator position");
  const std::string pipeline = reader.text();
  COHORT_CHECK(pipeline == source_->pipeline(), ErrorCode::invalid_argument,
               "[data.restore] expected a position in the pipeline '", source_->pipeline(),
               "', got one in '", pipeline, "'; build the pipeline as when it was saved");
  const std::string spec = reader.text();
  COHORT_CHECK(spec == spec_text(*source_), ErrorCode::invalid_argument,
               "[data.restore] expected a position in a dataset of ", spec_text(*source_),
               ", got one of ", spec, "; build the pipeline as when it was saved");
  try {
    source_->restore(reader);
    reader.expect_end();
  } catch (...) {
    source_ = std::make_unique<LostSource>(std::move(source_));
    throw;
  }
}

std::string Iterator::bottleneck() const {
  const std::vector<data::StageStats> all = stats();
  const auto worst = std::ranges::max_element(all, {}, &data::StageStats::seconds_exclusive);
  return worst == all.end() ? std::string() : worst->op + " at " + worst->place;
}

std::optional<Nest> Iterator::try_next() {
  Fields fields;
  if (!source_->next(fields)) return std::nullopt;
  return source_->pack(fields);
}

Nest Iterator::get_next() {
  std::optional<Nest> element = try_next();
  COHORT_CHECK(element.has_value(), ErrorCode::out_of_range, "[data.next] the dataset has ended");
  return std::move(*element);
}

Fields Iterator::next_fields(std::size_t expected) {
  Fields fields;
  COHORT_CHECK(source_->next(fields), ErrorCode::out_of_range, "[data.next] the dataset has ended");
  COHORT_CHECK(fields.size() == expected, ErrorCode::invalid_argument,
               "[data.next] expected elements of ", expected,
               " fields (the types of next<…>()), got ", fields.size(), ": ", spec_text(*source_),
               "; write at::Tensor once for each field");
  return fields;
}

Iterator& function::Argument<Iterator&>::from(const Nest& argument) {
  auto* iterator = argument.kind() == Nest::Kind::handle
                       ? dynamic_cast<Iterator*>(argument.handle().get())
                       : nullptr;
  if (iterator == nullptr) {
    throw Error(
        ErrorCode::invalid_argument,
        "[function.call] expected an iterator, got " +
            std::string(argument.kind() == Nest::Kind::handle ? argument.handle()->handle_kind()
                                                              : name_of(argument.kind())),
        ErrorCause::wrong_type);
  }
  return *iterator;
}

}  // namespace cohort
