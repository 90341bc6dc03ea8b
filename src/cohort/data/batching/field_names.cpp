// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/batching/field_names.h"

namespace cohort::data {
namespace {

void name_fields(const Nest& structure, const std::string& path, std::vector<std::string>& names) {
  if (structure.is_leaf()) {
    const std::string number = std::to_string(names.size());
    const bool says_more = !path.empty() && path != "[" + number + "]";
    names.push_back("field " + number + (says_more ? ", " + path : ""));
  } else if (structure.kind() == Nest::Kind::map) {
    for (const auto& [key, inner] : structure.entries()) {
      name_fields(inner, path + "['" + key + "']", names);
    }
  } else {
    for (std::size_t i = 0; i < structure.items().size(); ++i) {
      name_fields(structure.items()[i], path + "[" + std::to_string(i) + "]", names);
    }
  }
}

}  // namespace

std::vector<std::string> field_names(const Nest& structure) {
  std::vector<std::string> names;
  name_fields(structure, "", names);
  return names;
}

std::string field_name(const Nest& structure, std::size_t field) {
  const std::vector<std::string> names = field_names(structure);
  return field < names.size() ? names[field] : "field " + std::to_string(field);
}

}  // namespace cohort::data
