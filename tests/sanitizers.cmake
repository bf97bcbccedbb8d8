# What the sanitizers run of each test program: a filter of GoogleTest. The address sanitizer runs all
# of a program that has no memory_of_ here, the thread sanitizer nothing of one without threads_of_.

# list(JOIN) for a filter: msa_filter(VARIABLE BEFORE PATTERNS...)
function(msa_filter variable before)
    list(JOIN ARGN ":" patterns)
    set(${variable} "${before}${patterns}" PARENT_SCOPE)
endfunction()

# Of the tests of selectors, these have one thread. A teacher with a window, a cap or sinks changes
# what the loops of a loss read, not who reads it.
set(threads_of_test_core "-*EverySelector.*:Hisa*:Qsa*:OwnAttention/*Kl.*")
# Values differ alone: the cuts of a selector's queries are in each policy's ChunksDoNotMatter and in
# PackedBlocks, and QSA's loss and the lightning indexer's have no sinks or cap of their own.
msa_filter(memory_of_test_core "-" *EverySelector.GivesTheSameHowever* OwnAttention/QsaKl.*
    OwnAttention/LightningKl.*sinks* OwnAttention/LightningKl.*softcap*)
set(threads_of_test_analysis "*")
# A model that trains for long does what its first steps did.
# Products of every shape share out rows in one way, which Together and Trainer have.
set(threads_of_test_train "-*LearnsOneBatchByHeart:*Operations.*Linear*")
set(memory_of_test_train "-*LearnsOneBatchByHeart")
set(threads_of_test_goldens "-*reference_*")
set(threads_of_test_parallel "*-*reference*")

# The thread sanitizer takes every operation of cpu through every case once, beside which reference,
# with one thread, is but what results are compared with. Groups of every size are in
# GroupSizes.RerunsChangeNoBit.
msa_filter(threads_of_test_backends "" *RerunsChangeNoBit* *ThreadsThatShareOut* *CanStart.*
    *IndexSelect.FollowsTheReference* *IndexLseTest.IndexSelectGives* *E4m3Attention.*
    "*EveryUnionSize.*-*reference_*")
# The address sanitizer sees reference where the others are compared with it, in every case of every
# operation, and leaves out what differs from other tests in values alone. Groups of every size are in
# GroupSizes.EmptyAndShortRows, too, as are rows without a block, both gradients in MatchesReference,
# and empty tiles in EmptyRows.Everywhere.
msa_filter(memory_of_test_backends "-" */reference_f32 */reference_f32_* *RerunsChangeNoBit*
    *GroupSizes.MatchReference* *AllBlocksGiveTheDenseGradient* *EmptyRows.In*Tile* *EveryGroupSize.*
    OwnAttention/BlockMass*sinks* OwnAttention/BlockMass*softcap*
    OwnAttention/IndexLse*sinks* OwnAttention/IndexLse*softcap* *TernaryOperands.*
    *IndexLists.*ing *IndexLists.*_equal *IndexLists.*_few *IndexLists.*_rare *IndexLists.*_negative
    *IndexLists.*_mixed
    *GroupSizes.QueriesThatAreNotFinite* *GroupSizes.ForeignBlocks*
    *IsTheFiniteDifference* *KeysThatNobodySees* *HaveNoInfluence*)

# Many runs that have to give the same bytes, under kills or by several processes: each
# does what the run of another test does, whose memory the address sanitizer sees. What is left of a
# run that was interrupted is taken up in FitResume, Resume and Processes, all policies are tried in
# Compare.HasARowForEverySelector*.
# Runs that are checked for what they say: another test makes each with other values, whose memory is
# seen. Intervals.OfAnalyze and FitResume.GoesOn* have the intervals of a run and of a fit,
# Advise.AnErrorAndABudget* the three targets, Price.IsOfTheLongest* the price of other sizes,
# FitWorkers.TogetherHave* the workers of a fit, PrecisionRuns.ABackendsOwnKernelsReadACache* those
# kernels, CapturesOf several files, BenchCaptured.FileAndIndexer* a file under msa-bench,
# PrecisionTest.MeasuresTheFormats* the formats, DefaultSizes.GiveWay* and .BudgetsOf* the default sizes. 110 s of a core.
# Units that are cut otherwise are those of Analyze, which takes them as Compare does.
# Numbers that stay, add up or agree differ from other runs in values alone.
# What Processes do is seen in one process: claims in Claims, units of others in
# SharedResults and FitResume, a full disk in Resume.AFullDisk*, a folder that cannot be written in
# Claims.NeedAFolder*. Bench.OnlyWhatIsAskedFor and Bench.RanksAnswer* have the cases that
# msa-bench times.
msa_filter(memory_of_test_experiments "-" *ChangeNoBit *ChangeNoByte *TheBytesOfOne* *Kill*
    Resume.AfterInterrupts *.ResumesToTheSame* *DoNotMatter* CompareUnits.ChooseAsTheLayerDoes
    Compare.CostsAreThePhases* Compare.MoreBudget* Compare.EqualBudgets*
    Elements.ARoundedRunIsTheRunOfARoundedFile FarComparison.OfBlocks*
    Of/Units.OfAnotherCut*/Compare Of/Units.AreTheLayerToTheBit/Compare DefaultSizes.LeaveFour*
    *EveryBackend.SelectsTheSameOnOneRealFile* *PrecisionOnBackends.KernelsSelectBy*
    Bench.StructuredNeighbours* Bench.PacksFollow* Bench.EveryIndexElement*
    Advise.ThePageFits* Advise.TheOracleIsABound* Advise.EveryPoint*
    Advise.ALayerThatLooksEverywhere* Analyze.SampledQueriesAreRows* BenchCaptured.SampleOfTheRepository
    CapturesRun.MakeAnIndexerOfDsa* FitResume.ARefusal* Intervals.OfAGain* Intervals.OfAFit*
    PrecisionTest.FormatsThatMerge* PrecisionTest.FullPrecision*
    Advise.FindsTheSmallest* FitResume.*ReplacesAnother FitWorkers.Interrupted*
    PrecisionRuns.*AgreeWithTheSimulation PrecisionTest.WhatIsLost* Price.IsOfAllLayers*
    Resume.Overwrite* Reuse.TheBestPattern* *CommandLines.TakeTheSlash* *CommandLines.RefuseAPipe*
    Processes.* InputHashes.Processes* Bench.RecordHolds* Bench.WrongResults*
    *Goldens.NumbersStay* OneNumber.* PrecisionTest.MoreBits* PrecisionTest.AFormatReaches*
    PrecisionTest.MeansLeaveOut* Advise.MassOfLargeBlocks* Compare.LargeConstantLogits*
    CompareIntervals.BlocksAddUp* FitSharedAll.TheLossIsTheMean* Synth.TheOracleAndTheIndex*
    *EveryBackend.SelectsTheSameOnAFile*)
msa_filter(memory_of_test_pretrain "-" *ChangeNoBit *TheBytesOfOne *Kill* *ChangesNothing
    *EverySeedIsAsked* *LossOfANanoRunFalls)

# In CI the Release build runs of these programs what is left out above, and what the address
# sanitizer's build lacks (ranks of MPI) or does less of (random command lines). tests/check_once.sh
# fails on a test that neither build runs.
set(release_of_test_experiments Mpi.* *MpiUnits.* FitWorkers.*Rank* *CommandLines.AreAnswered*)
set(release_of_test_pretrain PretrainSweepRanks.* PretrainWorkers.*Rank* PretrainWorkers.ACheckpoint*)

# Side by side run the threads of selectors and measures, and the progress line. The
# sources of these tests alone are compiled.
set(sources_of_threads_test_experiments
    "/(test_(analyze|analyze_metrics|compare|fit|fit_backends|fit_workers|precision|run)|[a-z]+(_test|_backend)?)[.]cpp$")
msa_filter(threads_of_test_experiments "" Analyze.Threads* AnalyzeMetrics.* Compare.HasARow*
    Compare.Decode* FarAway.* FarComparison.OfTokens* Fit.ThreadsChangeNoBit
    FitTrainers.OfEvery* FitWorkers.TogetherHave* LateHashes.*)
