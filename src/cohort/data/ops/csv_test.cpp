// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "cohort/data/internal/dataset_op_suite.h"
#include "cohort/data/internal/files/csv_row.h"
#include "cohort/data/internal/files/file_fixture.h"

namespace cohort::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Strings = std::vector<std::string>;

const CsvColumn kText{.dtype = kString};
const CsvColumn kWhole{.dtype = at::kLong};

class Csv : public ::testing::Test {
 protected:
  Dataset csv(std::string_view text, CsvOptions options) const {
    return Dataset::csv(StringTensor(directory_.write("c.csv", text)), std::move(options));
  }
  Strings rows(std::string_view text, CsvOptions options) const {
    return elements_of(csv(text, std::move(options)));
  }
  Strings texts(std::string_view text) const { return rows(text, {.columns = {kText, kText}}); }

  ScratchDirectory directory_;
};

Dataset suite_csv(CsvOptions options) {
  static const ScratchDirectory directory;
  const Strings files{directory.write("a", "id,v,s\n1,0.5,a\n2,,\"b,c\"\n"),
                      directory.write("b", "id,v,s\n3,2.5,\n")};
  options.header = true;
  options.columns = {kWhole,
                     {.dtype = at::kFloat, .default_value = -1.0},
                     {.dtype = kString, .default_value = "none"}};
  return Dataset::csv(StringTensor(files), std::move(options));
}

INSTANTIATE_TEST_SUITE_P(
    Csv, DatasetOp,
    ::testing::Values(DatasetOpCase{"Plain", [] { return suite_csv({}); }},
                      DatasetOpCase{"Parallel",
                                    [] { return suite_csv({.file = {.num_parallel_reads = 2}}); }},
                      DatasetOpCase{"Batched", [] { return suite_csv({}).batch(2); }}));

TEST_F(Csv, YieldsRowsAsTuples) {
  EXPECT_THAT(elements_of(suite_csv({})),
              ElementsAre("(1, 0.5, 'a')", "(2, -1, 'b,c')", "(3, 2.5, 'none')"));
  EXPECT_EQ(suite_csv({}).element_spec().to_string(), "(int64[], float32[], string[])");
}

TEST_F(Csv, MakesATupleOfOneColumn) {
  EXPECT_THAT(rows("1\n2\n", {.columns = {kWhole}}), ElementsAre("(1)", "(2)"));
}

TEST_F(Csv, SelectsColumns) {
  const CsvOptions options{.columns = {kWhole, kText}, .select_columns = {0, 2}};
  EXPECT_THAT(rows("1,0.5,a\n2,,\"b,c\",more\n3,x\n", options),
              ElementsAre("(1, 'a')", "(2, 'b,c')", "error invalid_argument"));
}

TEST_F(Csv, ReportsAMissingFieldOfItsRowAlone) {
  EXPECT_THAT(rows("1,a\n,b\n3,c\n", {.columns = {kWhole, kText}}),
              ElementsAre("(1, 'a')", "error invalid_argument", "(3, 'c')"));
}

TEST_F(Csv, TakesAWordForAMissingField) {
  const CsvOptions options{.columns = {{.dtype = at::kInt, .default_value = 7}, kText},
                           .na_value = "NA"};
  EXPECT_THAT(rows("NA,1\n\"NA\",2\n\"\",3\n4,NA\n", options),
              ElementsAre("(7, '1')", "(7, '2')", "(7, '3')", "error invalid_argument"));
}

TEST_F(Csv, EndsRowsInEveryWay) {
  EXPECT_THAT(texts("a,b\rc,d\r\ne,f"), ElementsAre("('a', 'b')", "('c', 'd')", "('e', 'f')"));
  EXPECT_THAT(texts("a,b\n\nc,d\n"),
              ElementsAre("('a', 'b')", "error invalid_argument", "('c', 'd')"));
  EXPECT_THAT(rows("1\n\n2\n", {.columns = {{.dtype = at::kInt, .default_value = 0}}}),
              ElementsAre("(1)", "(0)", "(2)"));
  EXPECT_THAT(texts(""), ElementsAre());
}

TEST_F(Csv, ReadsQuotedFields) {
  EXPECT_THAT(texts("a,\"b\nc\"\n"), ElementsAre("('a', 'b\nc')"));
  EXPECT_THAT(texts("\"a\"\"b\",\"\"\"\"\n"), ElementsAre("('a\"b', '\"')"));
  EXPECT_THAT(texts("\"a\r\nb\",c\r\nd,e"), ElementsAre("('a\r\nb', 'c')", "('d', 'e')"));
}

// A quoted field goes on until a quote really ends it, as in the original.
TEST_F(Csv, ReportsQuotesInTheWrongPlace) {
  EXPECT_THAT(texts("a,b\"c\nd,e\n"), ElementsAre("error invalid_argument", "('d', 'e')"));
  EXPECT_THAT(texts("a,\"b\"c\nd,e\n"), ElementsAre("error invalid_argument"));
  EXPECT_THAT(texts("a,\"b\nc,d\n"), ElementsAre("error invalid_argument"));
  EXPECT_THAT(texts("a,\"b\"c\"\nd,e\n"), ElementsAre("error invalid_argument", "('d', 'e')"));
}

TEST_F(Csv, ReportsRowsOfAnotherLength) {
  EXPECT_THAT(texts("a\nb,c\nd,e,f\ng,h\n"), ElementsAre("error invalid_argument", "('b', 'c')",
                                                         "error invalid_argument", "('g', 'h')"));
}

TEST_F(Csv, NamesFileColumnAndValueOfABadRow) {
  Iterator iterator = csv("1\nx1\n", {.columns = {kWhole}}).iterator();
  iterator.try_next();
  const Error error = error_of([&] { iterator.try_next(); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("int64 in column 0, got 'x1'"),
                                  HasSubstr(directory_.file("c.csv")), HasSubstr("byte 5")));
}

TEST_F(Csv, WantsTheHeaderOfEveryFile) {
  EXPECT_THAT(rows("\"h\nh\"\n1\n", {.columns = {kWhole}, .header = true}), ElementsAre("(1)"));
  EXPECT_THAT(rows("h", {.columns = {kWhole}, .header = true}), ElementsAre());
  EXPECT_THAT(rows("", {.columns = {kWhole}, .header = true}),
              ElementsAre("error invalid_argument"));
}

TEST_F(Csv, TakesAnotherDelimiter) {
  EXPECT_THAT(rows("a,b;c\n", {.columns = {kText, kText}, .delimiter = ';'}),
              ElementsAre("('a,b', 'c')"));
}

TEST_F(Csv, ReadsRowsAcrossBufferBorders) {
  const std::string wide(9'000, 'w');
  const std::string path =
      directory_.write("t", "\"" + wide + "\n" + wide + "\"\r\n" + wide + "\rx");
  EXPECT_THAT(elements_of(Dataset::csv(StringTensor(path),
                                       {.columns = {kText}, .file = {.buffer_bytes = 1}})),
              ElementsAre("('" + wide + "\n" + wide + "')", "('" + wide + "')", "('x')"));
}

TEST_F(Csv, RefusesImpossibleOptions) {
  const auto code_of = [&](CsvOptions options) {
    return error_of([&] { csv("", std::move(options)); }).code();
  };
  EXPECT_EQ(code_of({}), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of({.columns = {{.dtype = at::kByte}}}), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of({.columns = {{.dtype = at::kLong, .default_value = "x"}}}),
            ErrorCode::invalid_argument);
  EXPECT_EQ(code_of({.columns = {kText}, .delimiter = '"'}), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of({.columns = {kText}, .select_columns = {0, 1}}), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of({.columns = {kText, kText}, .select_columns = {1, 1}}),
            ErrorCode::invalid_argument);
}

template <class T>
std::optional<T> number(std::string_view text) {
  T value = 0;
  return parse_number(text, value) ? std::optional<T>(value) : std::nullopt;
}

TEST(CsvNumber, IsReadAsTheOriginalDoes) {
  EXPECT_EQ(number<std::int32_t>(" 12 "), 12);
  EXPECT_EQ(number<std::int64_t>("+5"), 5);
  EXPECT_EQ(number<std::int64_t>("-9223372036854775808"), INT64_MIN);
  EXPECT_EQ(number<std::int32_t>("2147483648"), std::nullopt);
  EXPECT_EQ(number<std::int32_t>("1.5"), std::nullopt);
  EXPECT_EQ(number<std::int32_t>("+-5"), std::nullopt);
  EXPECT_EQ(number<std::int32_t>(""), std::nullopt);
  EXPECT_EQ(number<float>("1e3"), 1000.0F);
  EXPECT_EQ(number<float>("-0x10"), -16.0F);
  EXPECT_EQ(number<float>("0x-10"), std::nullopt);
  EXPECT_EQ(number<double>("1."), 1.0);
  EXPECT_EQ(number<double>("1.0x"), std::nullopt);
}

TEST(CsvNumber, MayBeWithoutEnd) {
  EXPECT_EQ(number<float>(" inf"), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(*number<float>("nan")));
  EXPECT_EQ(number<float>("-1e99"), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(number<double>("1e-999"), 0.0);
}

}  // namespace
}  // namespace cohort::data
