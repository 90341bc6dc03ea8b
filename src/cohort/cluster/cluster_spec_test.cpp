// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/cluster_resolver.h"

#include <gmock/gmock.h>

#include "cohort/core/error.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const ClusterSpec& example() {
  static const ClusterSpec spec({{"worker", {"a:1", "b:1"}}, {"ps", {"p:1"}}});
  return spec;
}

ClusterSpec sparse() { return ClusterSpec::from_tasks({{"worker", {{0, "a:1"}, {2, "c:1"}}}}); }

Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error;
  }
  return Error(ErrorCode::unknown, "nothing thrown");
}

TEST(ClusterSpec, AnswersForDenseJobs) {
  EXPECT_THAT(example().jobs(), ElementsAre("ps", "worker"));
  EXPECT_EQ(example().num_tasks("worker"), 2);
  EXPECT_THAT(example().task_indices("worker"), ElementsAre(0, 1));
  EXPECT_THAT(example().job_tasks("worker"), ElementsAre("a:1", "b:1"));
  EXPECT_EQ(example().task_address("worker", 1), "b:1");
}

TEST(ClusterSpec, AnswersForJobsWithHoles) {
  EXPECT_EQ(sparse().num_tasks("worker"), 2);
  EXPECT_THAT(sparse().task_indices("worker"), ElementsAre(0, 2));
  EXPECT_THAT(sparse().job_tasks("worker"), ElementsAre("a:1", std::nullopt, "c:1"));
  EXPECT_TRUE(sparse().has_task("worker", 2));
  EXPECT_FALSE(sparse().has_task("worker", 1));
}

TEST(ClusterSpec, AnswersForAnEmptyJob) {
  const ClusterSpec spec{{"worker", {}}};
  EXPECT_TRUE(bool(spec));
  EXPECT_EQ(spec.num_tasks("worker"), 0);
  EXPECT_TRUE(spec.job_tasks("worker").empty());
  EXPECT_EQ(spec.to_json(), R"({"worker":{}})");
}

TEST(ClusterSpec, IsTrueWhenItHasAJob) {
  EXPECT_FALSE(bool(ClusterSpec()));
  EXPECT_TRUE(bool(example()));
}

TEST(ClusterSpec, WritesListsWhereIndicesAreDense) {
  EXPECT_EQ(ClusterSpec().to_json(), "{}");
  EXPECT_EQ(example().to_json(), R"({"ps":["p:1"],"worker":["a:1","b:1"]})");
  EXPECT_EQ(sparse().to_json(), R"({"worker":{"0":"a:1","2":"c:1"}})");
  EXPECT_EQ(ClusterSpec::from_tasks({{"ps", {{1, "q:1"}}}}).to_string(), R"({"ps":{"1":"q:1"}})");
}

TEST(ClusterSpec, WritesBytesThatAreNotUtf8) {
  EXPECT_NO_THROW(ClusterSpec({{"worker", {"\xff:1"}}}).to_string());
}

TEST(ClusterSpec, IsReadBackFromItsText) {
  for (const ClusterSpec& spec : {ClusterSpec(), example(), sparse()}) {
    EXPECT_EQ(ClusterSpec::from_json(spec.to_json()), spec);
  }
}

TEST(ClusterSpec, ComparesByContentHoweverItWasMade) {
  EXPECT_EQ(ClusterSpec::from_tasks({{"worker", {{0, "a:1"}, {1, "b:1"}}}, {"ps", {{0, "p:1"}}}}),
            example());
  EXPECT_EQ(ClusterSpec::from_json(R"({"ps":{"0":"p:1"},"worker":{"01":"b:1"," 0":"a:1"}})"),
            example());
  EXPECT_EQ(ClusterSpec(example()), example());
  EXPECT_NE(example(), sparse());
  EXPECT_NE(ClusterSpec(), ClusterSpec({{"worker", {}}}));
}

TEST(ClusterSpec, NamesTheKnownJobsWhenAskedForAnother) {
  for (const auto& ask : std::vector<std::function<void()>>{
           [] { example().num_tasks("chief"); }, [] { example().task_indices("chief"); },
           [] { example().job_tasks("chief"); }, [] { example().task_address("chief", 0); }}) {
    EXPECT_THAT(error_of(ask).message(),
                HasSubstr("expected one of the jobs ps, worker, got \"chief\""));
  }
}

TEST(ClusterSpec, NamesTheJobThatMayBeMeant) {
  EXPECT_THAT(error_of([] { example().task_address("workers", 0); }).message(),
              HasSubstr("ask for another; did you mean 'worker'?"));
}

TEST(ClusterSpec, NamesTheKnownIndicesWhenAskedForAnother) {
  EXPECT_THAT(error_of([] { sparse().task_address("worker", 1); }).message(),
              HasSubstr("expected one of the indices 0, 2 of job \"worker\", got 1"));
  EXPECT_THAT(error_of([] { sparse().task_address("worker", -1); }).message(), HasSubstr("got -1"));
}

TEST(ClusterSpec, RefusesAJobGivenTwice) {
  EXPECT_THAT(error_of([] {
                ClusterSpec{{"ps", {"a:1"}}, {"ps", {"b:1"}}};
              }).message(),
              HasSubstr("got \"ps\" twice"));
}

TEST(ClusterSpec, RefusesNegativeIndices) {
  EXPECT_THAT(error_of([] {
                ClusterSpec::from_tasks({{"ps", {{-1, "p:1"}}}});
              }).message(),
              HasSubstr("got -1 in job \"ps\""));
  EXPECT_THAT(error_of([] { ClusterSpec::from_json(R"({"ps":{"-1":"p:1"}})"); }).message(),
              HasSubstr("got \"-1\" in the cluster.ps"));
}

// job_tasks() counted up to them: past the largest integer, or with gigabytes of empty entries.
TEST(ClusterSpec, RefusesIndicesThatNoClusterHas) {
  for (const char* index : {"1000000", "9000000000", "9223372036854775807"}) {
    const std::string text = R"({"worker":{")" + std::string(index) + R"(":"h:1"}})";
    EXPECT_THAT(error_of([&] { ClusterSpec::from_json(text); }).message(),
                HasSubstr("expected an index of at most 999999, got " + std::string(index)));
  }
  const ClusterSpec largest = ClusterSpec::from_json(R"({"worker":{"999999":"h:1"}})");
  EXPECT_EQ(largest.job_tasks("worker").size(), 1'000'000U);
  EXPECT_EQ(ClusterSpec::from_json(largest.to_json()), largest);
}

struct BadText {
  std::string text;
  ErrorCause cause;
  std::string expected;
  std::string got;
};

TEST(ClusterSpec, SaysWhatIsWrongWithATextAndWhere) {
  const BadText rows[] = {
      {"{", ErrorCause::none, "expected JSON for TF_CONFIG key cluster", "got \"{\""},
      {"", ErrorCause::none, "expected JSON", "got \"\""},
      {"3", ErrorCause::wrong_type, "expected an object", "got \"3\""},
      {"null", ErrorCause::wrong_type, "expected an object", "got \"null\""},
      {"[\"a:1\"]", ErrorCause::wrong_type, "expected an object", "got \"[\"a:1\"]\""},
      {R"({"ps":"p:1"})", ErrorCause::wrong_type, "TF_CONFIG key cluster.ps", "got \"\"p:1\"\""},
      {R"({"ps":7})", ErrorCause::wrong_type, "expected a list of addresses", "got \"7\""},
      {R"({"ps":["a:1",1]})", ErrorCause::wrong_type, "TF_CONFIG key cluster.ps[1]", "got \"1\""},
      {R"({"ps":{"4":null}})", ErrorCause::wrong_type, "cluster.ps[4]", "got \"null\""},
      {R"({"ps":{"x":"p:1"}})", ErrorCause::none, "expected an index of 0 or more", "got \"x\""},
      {R"({"ps":{"1":"p:1","01":"q:1"}})", ErrorCause::none, "expected each index once",
       "got 1 twice in TF_CONFIG key cluster.ps"}};
  for (const BadText& row : rows) {
    const Error error =
        error_of([&] { ClusterSpec::from_json(row.text, "TF_CONFIG key cluster"); });
    EXPECT_THAT(error.message(), AllOf(HasSubstr(row.expected), HasSubstr(row.got))) << row.text;
    EXPECT_THAT(error.message(),
                ::testing::AnyOf(HasSubstr("host:port"), HasSubstr("index of its own")));
    EXPECT_EQ(error.cause(), row.cause) << row.text;
  }
}

}  // namespace
}  // namespace cohort
