// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/graph/attribute_reader.h"

#include <algorithm>

#include "cohort/core/error.h"
#include "cohort/data/graph/nest_codec.h"

namespace cohort::data {

const Nest& AttributeReader::nest(const std::string& name) {
  const auto found = attributes_.find(name);
  COHORT_CHECK(found != attributes_.end(), ErrorCode::data_loss,
               "[data.deserialize] expected attribute '", name, "' of op '", op_, "', got none");
  read_.push_back(found->first);
  return found->second;
}

const Nest& AttributeReader::value(const std::string& name, Nest::Kind kind) {
  const Nest& found = nest(name);
  COHORT_CHECK(found.kind() == kind, ErrorCode::data_loss, "[data.deserialize] expected ",
               name_of(kind), " for attribute '", name, "' of op '", op_, "', got ",
               name_of(found.kind()));
  return found;
}

std::int64_t AttributeReader::integer(const std::string& name) {
  return value(name, Nest::Kind::integer).integer();
}

std::vector<std::string> AttributeReader::texts(const std::string& name) {
  std::vector<std::string> found;
  for (const Nest& item : value(name, Nest::Kind::list).items()) {
    COHORT_CHECK(item.kind() == Nest::Kind::text, ErrorCode::data_loss,
                 "[data.deserialize] expected texts in attribute '", name, "' of op '", op_,
                 "', got ", name_of(item.kind()));
    found.push_back(item.text());
  }
  return found;
}

ElementSpec AttributeReader::spec(const std::string& name) { return spec_of(nest(name)); }

void AttributeReader::operator()(const char* name, std::vector<std::int64_t>& value) {
  for (const Nest& item : nest(name).items()) value.push_back(item.integer());
}

void AttributeReader::operator()(const char* name, at::ScalarType& value) {
  const std::int64_t dtype = integer(name);
  COHORT_CHECK(dtype >= 0 && dtype < static_cast<std::int64_t>(at::ScalarType::NumOptions),
               ErrorCode::data_loss, "[data.", op_, "] expected a dtype, got ", dtype);
  value = static_cast<at::ScalarType>(dtype);
}

void AttributeReader::operator()(const char* name, char& value) {
  const std::string& letters = text(name);
  COHORT_CHECK(letters.size() == 1, ErrorCode::data_loss, "[data.", op_, "] expected a ", name,
               " of one character, got '", letters, "'");
  value = letters[0];
}

void AttributeReader::expect_all_read() const {
  for (const auto& [name, unused] : attributes_) {
    COHORT_CHECK(std::ranges::find(read_, name) != read_.end(), ErrorCode::data_loss,
                 "[data.deserialize] op '", op_, "' has no attribute '", name,
                 "': it comes from another version of Cohort");
  }
}

}  // namespace cohort::data
