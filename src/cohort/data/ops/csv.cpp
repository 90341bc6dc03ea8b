// SPDX-License-Identifier: Apache-2.0
// csv: the rows of CSV files as tuples of scalars.
#include <cmath>
#include <limits>
#include <utility>

#include "cohort/data/files/csv_row.h"
#include "cohort/data/files/csv_values.h"
#include "cohort/data/files/file_reader.h"
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

struct CsvAttributes {
  static constexpr std::string_view kOp = "csv";
  FileList files = {};
  CsvOptions options = {};  // the columns are serialized as spec and defaults
  static void describe(auto& visit, auto& all) {
    describe_files(visit, all);
    visit("select_columns", all.options.select_columns);
    visit("header", all.options.header);
    visit("delimiter", all.options.delimiter);
    visit("na_value", all.options.na_value);
    visit.optional("max_row_bytes", all.options.max_row_bytes, CsvOptions().max_row_bytes,
                   kPositive);
  }
};

// Whether T has this number: an integer exactly, a real number rounded.
template <class T>
bool has_number(const Nest& value) {
  if (value.kind() == Nest::Kind::real) {
    return !std::isfinite(value.real()) || std::isfinite(static_cast<T>(value.real()));
  }
  constexpr std::int64_t kExactMax = std::int64_t{1} << std::numeric_limits<T>::digits;
  return value.integer() >= -kExactMax && value.integer() <= kExactMax;
}

// Without this check, the column would get another number, and no error would tell.
void check_range(const CsvColumn& column, std::size_t number) {
  const Nest& value = *column.default_value;
  bool fits = true;
  if (column.dtype == at::ScalarType::Int) fits = std::in_range<std::int32_t>(value.integer());
  if (column.dtype == at::ScalarType::Float) fits = has_number<float>(value);
  if (column.dtype == at::ScalarType::Double) fits = has_number<double>(value);
  if (fits) return;
  const std::string text = value.kind() == Nest::Kind::real ? std::to_string(value.real())
                                                            : std::to_string(value.integer());
  internal::throw_error(ErrorCode::invalid_argument, "[data.csv] expected a default that ",
                        dtype_name(column.dtype), " has, for column ", number, ", got ", text,
                        "; choose a wider dtype or another default");
}

void check_default(const CsvColumn& column, std::size_t number) {
  if (!column.default_value) return;
  const Nest::Kind kind = column.default_value->kind();
  const bool is_real =
      column.dtype == at::ScalarType::Float || column.dtype == at::ScalarType::Double;
  const bool fits = column.dtype == kString
                        ? kind == Nest::Kind::text
                        : kind == Nest::Kind::integer || (is_real && kind == Nest::Kind::real);
  COHORT_CHECK(fits, ErrorCode::invalid_argument, "[data.csv] expected a default of ",
               dtype_name(column.dtype), " for column ", number, ", got ", name_of(kind));
  check_range(column, number);
}

const CsvOptions& checked(const CsvOptions& options) {
  COHORT_CHECK(!options.columns.empty(), ErrorCode::invalid_argument,
               "[data.csv] expected at least one column, got none");
  for (std::size_t i = 0; i < options.columns.size(); ++i) {
    switch (options.columns[i].dtype) {
      case at::ScalarType::Int:
      case at::ScalarType::Long:
      case at::ScalarType::Float:
      case at::ScalarType::Double:
      case kString:
        break;
      default:
        internal::throw_error(ErrorCode::invalid_argument,
                              "[data.csv] expected int32, int64, float32, float64 or string, got ",
                              dtype_name(options.columns[i].dtype), " for column ", i);
    }
    check_default(options.columns[i], i);
  }
  constexpr std::string_view kReserved = "\"\n\r";
  COHORT_CHECK(kReserved.find(options.delimiter) == std::string_view::npos,
               ErrorCode::invalid_argument,
               "[data.csv] expected a delimiter that is no quote and ends no line, got character ",
               static_cast<int>(options.delimiter));
  if (options.select_columns.empty()) return options;
  COHORT_CHECK(options.select_columns.size() == options.columns.size(), ErrorCode::invalid_argument,
               "[data.csv] expected as many columns as select_columns, ",
               options.select_columns.size(), ", got ", options.columns.size());
  std::int64_t last = -1;
  for (const std::int64_t number : options.select_columns) {
    COHORT_CHECK(number > last, ErrorCode::invalid_argument,
                 "[data.csv] expected select_columns of at least 0 in ascending order, got ",
                 number, " behind ", last);
    last = number;
  }
  return options;
}

class CsvNode final : public FileReaderOp<CsvNode, CsvAttributes> {
 public:
  CsvNode(std::vector<NodePtr> inputs, CsvAttributes given)
      : FileReaderOp(std::move(inputs), std::move(given)), rows_(checked(options_)) {}

  // Not that of the file names.
  Nest structure() const override { return spec().structure; }

  Attributes attributes() const override {
    Attributes all = FileReaderOp::attributes();
    Nest::Items defaults;
    for (const CsvColumn& column : options_.columns) {
      defaults.push_back(column.default_value.value_or(Nest()));
    }
    all.emplace("spec", nest_of(make_spec()));
    all.emplace("defaults", Nest::list(std::move(defaults)));
    return all;
  }

  std::unique_ptr<FileScanner> open(const std::string& path) const override {
    return std::make_unique<CsvScanner>(
        CsvFile{.path = path,
                .compression = file_options().compression,
                .delimiter = options_.delimiter,
                .has_header = options_.header,
                .has_blank_rows = has_blank_rows(),
                .row_bytes_max = static_cast<std::size_t>(options_.max_row_bytes)},
        file_options().buffer_bytes);
  }

  void make_element(std::string_view row, Fields& fields) const override {
    rows_.read(row, fields);
  }
  std::unique_ptr<ValueBatch> start_batch() const override { return rows_.start_batch(); }

 protected:
  // A tuple even of one column.
  ElementSpec make_spec() const override {
    ElementSpec spec;
    Nest::Items structure;
    for (const CsvColumn& column : options_.columns) {
      structure.emplace_back(static_cast<std::int64_t>(structure.size()));
      spec.fields.push_back({column.dtype, std::vector<std::int64_t>{}});
    }
    spec.structure = Nest::tuple(std::move(structure));
    return spec;
  }

 private:
  bool has_blank_rows() const {
    const bool takes_first = options_.select_columns.empty() || options_.select_columns[0] == 0;
    return options_.columns.size() == 1 && takes_first && options_.columns[0].default_value;
  }

  const CsvOptions& options_ = given().options;
  CsvRowReader rows_;
};

std::vector<CsvColumn> columns_from(AttributeReader& attributes) {
  const ElementSpec spec = attributes.spec("spec");
  const Nest::Items& defaults = attributes.nest("defaults").items();
  COHORT_CHECK(spec.fields.size() == defaults.size(), ErrorCode::data_loss, "[data.csv] expected ",
               spec.fields.size(), " defaults, got ", defaults.size());
  std::vector<CsvColumn> columns;
  for (std::size_t i = 0; i < defaults.size(); ++i) {
    columns.push_back({.dtype = spec.fields[i].dtype});
    if (!defaults[i].is_null()) columns.back().default_value = defaults[i];
  }
  return columns;
}

}  // namespace

NodePtr make_csv(SerializedOp op) {
  return CsvNode::read(op, {.options = {.columns = columns_from(op.attributes)}});
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::csv(StringTensor files, CsvOptions options) {
  return data::CsvNode::of(files, std::move(options));
}

}  // namespace cohort
