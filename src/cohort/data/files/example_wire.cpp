// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/files/example_wire.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <array>
#include <cstring>
#include <limits>

#include "cohort/core/error.h"

namespace cohort::data {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using Wire = google::protobuf::internal::WireFormatLite;

// Iterates over the fields of a message. Used only within one parse.
class Message {
 public:
  explicit Message(std::string_view bytes)
      : size_(checked_size(bytes)),
        stream_(reinterpret_cast<const std::uint8_t*>(bytes.data()), size_) {}

  // The next field's tag; 0 at the end.
  std::uint32_t next_tag() {
    if (stream_.CurrentPosition() == size_) return 0;
    const std::uint32_t tag = stream_.ReadTag();
    check(tag != 0);
    return tag;
  }
  // The bytes of the field after its tag.
  std::string_view bytes() {
    std::uint32_t length = 0;
    const void* data = nullptr;
    int available = 0;
    check(stream_.ReadVarint32(&length));
    if (length == 0) return {};
    check(stream_.GetDirectBufferPointer(&data, &available) &&
          length <= static_cast<std::uint32_t>(available) &&
          stream_.Skip(static_cast<int>(length)));
    return {static_cast<const char*>(data), length};
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    check(stream_.ReadVarint64(&value));
    return value;
  }
  float number() {
    std::uint32_t bits = 0;
    check(stream_.ReadLittleEndian32(&bits));
    return Wire::DecodeFloat(bits);
  }
  void skip(std::uint32_t tag) { check(Wire::SkipField(&stream_, tag)); }
  bool is_at_end() const { return stream_.CurrentPosition() == size_; }

 private:
  static int checked_size(std::string_view bytes) {
    COHORT_CHECK(bytes.size() <= static_cast<std::size_t>(std::numeric_limits<int>::max()),
                 ErrorCode::invalid_argument,
                 "[data.example] expected a message of less than 2 GiB, got ", bytes.size(),
                 " bytes");
    return static_cast<int>(bytes.size());
  }
  void check(bool is_good) const {
    COHORT_CHECK(is_good, ErrorCode::invalid_argument,
                 "[data.example] expected a tf.train.Example, got bytes that are none at byte ",
                 stream_.CurrentPosition(), " of ", size_, " of a part of the message");
  }

  int size_;
  CodedInputStream stream_;
};

constexpr std::uint32_t tag_of(std::uint32_t field, Wire::WireType type) {
  return (field << 3) | static_cast<std::uint32_t>(type);
}
constexpr std::uint32_t kFirst = tag_of(1, Wire::WIRETYPE_LENGTH_DELIMITED);
constexpr std::uint32_t kSecond = tag_of(2, Wire::WIRETYPE_LENGTH_DELIMITED);
constexpr std::uint32_t kThird = tag_of(3, Wire::WIRETYPE_LENGTH_DELIMITED);

// Calls visit(message, tag) for each field, which reads the field or returns false.
template <class Visit>
void visit_fields(std::string_view bytes, Visit visit) {
  Message message(bytes);
  while (const std::uint32_t tag = message.next_tag()) {
    if (!visit(message, tag)) message.skip(tag);
  }
}

// Calls visit() for the bytes of each field number 1.
template <class Visit>
void visit_first_fields(std::string_view bytes, Visit visit) {
  visit_fields(bytes, [&](Message& message, std::uint32_t tag) {
    if (tag != kFirst) return false;
    visit(message.bytes());
    return true;
  });
}

void visit_feature(std::string_view bytes, FeatureView& feature) {
  visit_fields(bytes, [&](Message& message, std::uint32_t tag) {
    const bool is_list = tag == kFirst || tag == kSecond || tag == kThird;
    if (!is_list || feature.kind != FeatureKind::none) return false;
    feature.kind = static_cast<FeatureKind>(tag >> 3);
    feature.list = message.bytes();
    return true;
  });
}

// Parses an entry of a map and returns its key. Calls visit() for each of its values, since
// protocol buffers merge repeated ones.
template <class Visit>
std::string_view visit_entry(std::string_view bytes, Visit visit) {
  std::string_view key;
  visit_fields(bytes, [&](Message& message, std::uint32_t tag) {
    if (tag == kFirst) key = message.bytes();
    if (tag == kSecond) visit(message.bytes());
    return tag == kFirst || tag == kSecond;
  });
  return key;
}

void visit_features(std::string_view bytes, const FeatureVisitor& visit, FeatureView& feature) {
  visit_first_fields(bytes, [&](std::string_view entry) {
    feature = {};
    const std::string_view key =
        visit_entry(entry, [&](std::string_view value) { visit_feature(value, feature); });
    visit(key, feature);
  });
}

// Protocol buffers require strings in UTF-8.
void check_text(std::string_view key) {
  COHORT_CHECK(
      google::protobuf::internal::IsStructurallyValidUTF8(key.data(), static_cast<int>(key.size())),
      ErrorCode::invalid_argument, "[data.example] expected the name of a feature in UTF-8, got ",
      key.size(), " bytes that are not; write it in UTF-8, or as digits if it is no text");
}

template <class List>
void append_list(std::string_view list, Feature& feature) {
  if (!std::holds_alternative<List>(feature)) feature = List();
  append_values(list, std::get<List>(feature));
}

// As visit_feature(), but parses all values. Malformed values throw even if a later list replaces
// them.
void merge_feature(std::string_view bytes, Feature& feature) {
  visit_fields(bytes, [&](Message& message, std::uint32_t tag) {
    if (tag == kFirst) {
      std::vector<std::string_view> values;
      append_values(message.bytes(), values);
      if (!std::holds_alternative<BytesList>(feature)) feature = BytesList();
      BytesList& list = std::get<BytesList>(feature);
      list.insert(list.end(), values.begin(), values.end());
    } else if (tag == kSecond) {
      append_list<FloatList>(message.bytes(), feature);
    } else if (tag == kThird) {
      append_list<Int64List>(message.bytes(), feature);
    } else {
      return false;
    }
    return true;
  });
}

void merge_feature(std::string_view bytes, std::vector<Feature>& list) {
  visit_first_fields(bytes, [&](std::string_view one) { merge_feature(one, list.emplace_back()); });
}

// The entries of a map of features or of lists of them.
template <class Value>
void merge_entries(std::string_view bytes, std::map<std::string, Value>& entries) {
  visit_first_fields(bytes, [&](std::string_view entry) {
    Value value;
    const std::string_view key =
        visit_entry(entry, [&](std::string_view part) { merge_feature(part, value); });
    check_text(key);
    entries.insert_or_assign(std::string(key), std::move(value));
  });
}

void append_varint(std::string& to, std::uint64_t value) {
  std::uint8_t bytes[10];
  const std::uint8_t* end = CodedOutputStream::WriteVarint64ToArray(value, bytes);
  to.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(end - bytes));
}

void append_field(std::string& to, std::uint32_t tag, std::string_view bytes) {
  append_varint(to, tag);
  append_varint(to, bytes.size());
  to += bytes;
}

struct ListEncoder {
  std::string operator()(std::monostate) const { return {}; }
  std::string operator()(const BytesList& values) const {
    std::string list;
    for (const std::string& value : values) append_field(list, kFirst, value);
    return wrapped(kFirst, list);
  }
  std::string operator()(const FloatList& values) const {
    std::string packed(values.size() * sizeof(float), '\0');
    if (!values.empty()) std::memcpy(packed.data(), values.data(), packed.size());
    return wrapped(kSecond, packed_field(packed));
  }
  std::string operator()(const Int64List& values) const {
    std::string packed;
    for (const std::int64_t value : values) {
      append_varint(packed, static_cast<std::uint64_t>(value));
    }
    return wrapped(kThird, packed_field(packed));
  }

 private:
  static std::string wrapped(std::uint32_t tag, std::string_view list) {
    std::string feature;
    append_field(feature, tag, list);
    return feature;
  }
  static std::string packed_field(std::string_view packed) {
    std::string list;
    if (!packed.empty()) append_field(list, kFirst, packed);
    return list;
  }
};

void append_entry(std::string& to, std::string_view key, std::string_view value) {
  std::string entry;
  append_field(entry, kFirst, key);
  append_field(entry, kSecond, value);
  append_field(to, kFirst, entry);
}

std::string encode(const Features& features) {
  std::string bytes;
  for (const auto& [key, feature] : features) {
    append_entry(bytes, key, std::visit(ListEncoder(), feature));
  }
  return bytes;
}

}  // namespace

std::string_view name_of(FeatureKind kind) {
  static constexpr std::array<std::string_view, 4> kNames{"none", "string", "float32", "int64"};
  return kNames.at(static_cast<std::size_t>(kind));
}

void append_values(std::string_view list, std::vector<std::string_view>& values) {
  visit_first_fields(list, [&](std::string_view value) { values.push_back(value); });
}

void append_values(std::string_view list, std::vector<float>& values) {
  visit_fields(list, [&](Message& message, std::uint32_t tag) {
    if (tag == tag_of(1, Wire::WIRETYPE_FIXED32)) {
      values.push_back(message.number());
      return true;
    }
    if (tag != kFirst) return false;
    const std::string_view packed = message.bytes();
    COHORT_CHECK(packed.size() % sizeof(float) == 0, ErrorCode::invalid_argument,
                 "[data.example] expected 4 bytes per float, got ", packed.size(), " bytes");
    const std::size_t before = values.size();
    values.resize(before + packed.size() / sizeof(float));
    if (!packed.empty()) std::memcpy(values.data() + before, packed.data(), packed.size());
    return true;
  });
}

void append_values(std::string_view list, std::vector<std::int64_t>& values) {
  visit_fields(list, [&](Message& message, std::uint32_t tag) {
    if (tag == kFirst) {
      Message packed(message.bytes());
      while (!packed.is_at_end()) values.push_back(static_cast<std::int64_t>(packed.varint()));
    } else if (tag == tag_of(1, Wire::WIRETYPE_VARINT)) {
      values.push_back(static_cast<std::int64_t>(message.varint()));
    } else {
      return false;
    }
    return true;
  });
}

void visit_example(std::string_view bytes, const FeatureVisitor& visit) {
  FeatureView feature;
  visit_first_fields(bytes,
                     [&](std::string_view features) { visit_features(features, visit, feature); });
}

}  // namespace cohort::data

namespace cohort {

std::string Example::serialize() const {
  std::string bytes;
  data::append_field(bytes, data::kFirst, data::encode(features));
  return bytes;
}

Example Example::parse(std::string_view bytes) {
  Example example;
  data::visit_first_fields(
      bytes, [&](std::string_view part) { data::merge_entries(part, example.features); });
  return example;
}

std::string SequenceExample::serialize() const {
  std::string lists;
  for (const auto& [key, features] : feature_lists) {
    std::string list;
    for (const Feature& feature : features) {
      data::append_field(list, data::kFirst, std::visit(data::ListEncoder(), feature));
    }
    data::append_entry(lists, key, list);
  }
  std::string bytes;
  data::append_field(bytes, data::kFirst, data::encode(context));
  data::append_field(bytes, data::kSecond, lists);
  return bytes;
}

SequenceExample SequenceExample::parse(std::string_view bytes) {
  SequenceExample example;
  data::visit_fields(bytes, [&](data::Message& message, std::uint32_t tag) {
    if (tag == data::kFirst) data::merge_entries(message.bytes(), example.context);
    if (tag == data::kSecond) data::merge_entries(message.bytes(), example.feature_lists);
    return tag == data::kFirst || tag == data::kSecond;
  });
  return example;
}

}  // namespace cohort
