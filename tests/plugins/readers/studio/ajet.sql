BEGIN TRANSACTION;
CREATE TABLE "friday_app_message_table" ("id" varchar PRIMARY KEY NOT NULL, "name" varchar NOT NULL, "role" varchar NOT NULL, "content" json NOT NULL, "timestamp" varchar NOT NULL, "reply_id" varchar NOT NULL, CONSTRAINT "FK_f38ba43816f589cb038d09c2855" FOREIGN KEY ("reply_id") REFERENCES "friday_app_reply_table" ("id") ON DELETE CASCADE ON UPDATE NO ACTION);
CREATE TABLE "friday_app_reply_table" ("id" varchar PRIMARY KEY NOT NULL, "startTimeStamp" varchar NOT NULL, "endTimeStamp" varchar, "finished" boolean NOT NULL);
CREATE TABLE "input_request_table" ("requestId" varchar PRIMARY KEY NOT NULL, "agentId" varchar NOT NULL, "agentName" varchar NOT NULL, "structuredInput" json, "run_id" varchar NOT NULL, CONSTRAINT "FK_a11e53a82c276f065bd1d2cc560" FOREIGN KEY ("run_id") REFERENCES "run_table" ("id") ON DELETE CASCADE ON UPDATE NO ACTION);
CREATE TABLE "message_table" ("id" varchar PRIMARY KEY NOT NULL, "msg" json NOT NULL, "speech" json, "run_id" varchar NOT NULL, "replyId" varchar NOT NULL, CONSTRAINT "FK_3986bdb99ba55f92d49d23d2a40" FOREIGN KEY ("run_id") REFERENCES "run_table" ("id") ON DELETE CASCADE ON UPDATE NO ACTION, CONSTRAINT "FK_769be4acc8312b8812d63341de6" FOREIGN KEY ("replyId") REFERENCES "reply_table" ("replyId") ON DELETE CASCADE ON UPDATE NO ACTION);
CREATE TABLE "migrations" ("id" integer PRIMARY KEY AUTOINCREMENT NOT NULL, "timestamp" bigint NOT NULL, "name" varchar NOT NULL);
INSERT INTO "migrations" VALUES(1,1730000000000,'AddMessageReplyForeignKey1730000000000');
INSERT INTO "migrations" VALUES(2,1740000000000,'MigrateSpanTable1740000000000');
CREATE TABLE "reply_table" ("replyId" varchar PRIMARY KEY NOT NULL, "replyRole" varchar NOT NULL, "replyName" varchar NOT NULL, "createdAt" varchar NOT NULL, "finishedAt" varchar, "run_id" varchar NOT NULL, CONSTRAINT "FK_b9760204bfdb364a189b5501fe7" FOREIGN KEY ("run_id") REFERENCES "run_table" ("id") ON DELETE CASCADE ON UPDATE NO ACTION);
CREATE TABLE "run_table" ("id" varchar PRIMARY KEY NOT NULL, "project" varchar NOT NULL, "name" varchar NOT NULL, "timestamp" varchar NOT NULL, "run_dir" varchar NOT NULL, "pid" integer NOT NULL, "status" varchar CHECK( "status" IN ('running','pending','done','unknown') ) NOT NULL DEFAULT ('done'));
INSERT INTO "run_table" VALUES('07bb7885-0a3b-5947-82fe-6b79c52be39d','sums','20261124-010042','2026-11-24 01:00:42.859','/tmp/tmpoz09t194/20261124-010042',6728,'done');
CREATE TABLE "span_table" ("id" varchar PRIMARY KEY NOT NULL, "traceId" varchar NOT NULL, "spanId" varchar NOT NULL, "traceState" varchar, "parentSpanId" varchar, "flags" integer, "name" varchar NOT NULL, "kind" integer NOT NULL, "startTimeUnixNano" varchar NOT NULL, "endTimeUnixNano" varchar NOT NULL, "attributes" json NOT NULL, "droppedAttributesCount" integer, "events" json, "droppedEventsCount" integer, "links" json, "droppedLinksCount" integer, "status" json NOT NULL, "resource" json NOT NULL, "scope" json NOT NULL, "statusCode" integer, "serviceName" varchar, "operationName" varchar, "instrumentationName" varchar, "instrumentationVersion" varchar, "model" varchar, "inputTokens" integer, "outputTokens" integer, "totalTokens" integer, "conversationId" varchar, "latencyNs" float NOT NULL);
INSERT INTO "span_table" VALUES('ad115d234650c35c','d15da2802f4e8b75fa7d5134760097c8','ad115d234650c35c','','',0,'invoke_agent agent',1,'1795482044364063700','1795482044539600100','{"gen_ai":{"conversation":{"id":"07bb7885-0a3b-5947-82fe-6b79c52be39d"},"provider":{"name":"agentjet"},"operation":{"name":"invoke_agent"},"agent":{"name":"agent"},"input":{"messages":[{"role":"user","parts":[{"type":"text","content":"Which is larger, 51 or 42?"}]}]},"output":{"messages":[{"role":"assistant","parts":[{"type":"text","content":"4 + 2 = 6"}],"finish_reason":"stop"}]}},"ajet":{"episode":{"id":"1.0/random-0-10/0"},"task":{"id":"random-0-10"},"phase":"train","step":1}}',0,'[{"name":"gen_ai.evaluation.result","time":"1795482044539600100","attributes":{"gen_ai":{"evaluation":{"name":"reward","score":{"value":0.25}}}},"droppedAttributesCount":0}]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"service":{"name":"sums"}}}','{"name":"ajet","version":"","attributes":{}}',1,'sums','invoke_agent',NULL,NULL,NULL,NULL,NULL,NULL,'07bb7885-0a3b-5947-82fe-6b79c52be39d',175536384.0);
INSERT INTO "span_table" VALUES('ee3726a3a1852380','d15da2802f4e8b75fa7d5134760097c8','ee3726a3a1852380','','ad115d234650c35c',0,'chat starter',3,'1795482044382242600','1795482044432476400','{"gen_ai":{"conversation":{"id":"07bb7885-0a3b-5947-82fe-6b79c52be39d"},"provider":{"name":"agentjet"},"operation":{"name":"chat"},"agent":{"name":"agent"},"request":{"model":"starter"},"input":{"messages":[{"role":"user","parts":[{"type":"text","content":"Which is larger, 51 or 42?"}]}]},"output":{"messages":[{"role":"assistant","parts":[{"type":"text","content":"4 + 2 = 6"}],"finish_reason":"stop"}]},"response":{"finish_reasons":["stop"]},"usage":{"input_tokens":28,"output_tokens":8}},"ajet":{"target":"policy"}}',0,'[]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"service":{"name":"sums"}}}','{"name":"ajet","version":"","attributes":{}}',1,'sums','chat',NULL,NULL,'starter',28,8,36,'07bb7885-0a3b-5947-82fe-6b79c52be39d',50233856.0);
INSERT INTO "span_table" VALUES('6eff467cf3cb70c2','20063b61b48455935cbee7f1769f142d','6eff467cf3cb70c2','','',0,'invoke_agent agent',1,'1795482044364172300','1795482044551892500','{"gen_ai":{"conversation":{"id":"07bb7885-0a3b-5947-82fe-6b79c52be39d"},"provider":{"name":"agentjet"},"operation":{"name":"invoke_agent"},"agent":{"name":"agent"},"input":{"messages":[{"role":"user","parts":[{"type":"text","content":"Which is larger, 51 or 42?"}]}]},"output":{"messages":[{"role":"assistant","parts":[{"type":"text","content":"4 + 2 = 6"}],"finish_reason":"stop"}]}},"ajet":{"episode":{"id":"1.0/random-0-10/1"},"task":{"id":"random-0-10"},"phase":"train","step":1}}',0,'[{"name":"gen_ai.evaluation.result","time":"1795482044551892500","attributes":{"gen_ai":{"evaluation":{"name":"reward","score":{"value":0.25}}}},"droppedAttributesCount":0}]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"service":{"name":"sums"}}}','{"name":"ajet","version":"","attributes":{}}',1,'sums','invoke_agent',NULL,NULL,NULL,NULL,NULL,NULL,'07bb7885-0a3b-5947-82fe-6b79c52be39d',187720192.0);
INSERT INTO "span_table" VALUES('3ffd4a0c15ee2217','20063b61b48455935cbee7f1769f142d','3ffd4a0c15ee2217','','6eff467cf3cb70c2',0,'chat starter',3,'1795482044417798400','1795482044466775800','{"gen_ai":{"conversation":{"id":"07bb7885-0a3b-5947-82fe-6b79c52be39d"},"provider":{"name":"agentjet"},"operation":{"name":"chat"},"agent":{"name":"agent"},"request":{"model":"starter"},"input":{"messages":[{"role":"user","parts":[{"type":"text","content":"Which is larger, 51 or 42?"}]}]},"output":{"messages":[{"role":"assistant","parts":[{"type":"text","content":"4 + 2 = 6"}],"finish_reason":"stop"}]},"response":{"finish_reasons":["stop"]},"usage":{"input_tokens":28,"output_tokens":8}},"ajet":{"target":"policy"}}',0,'[]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"service":{"name":"sums"}}}','{"name":"ajet","version":"","attributes":{}}',1,'sums','chat',NULL,NULL,'starter',28,8,36,'07bb7885-0a3b-5947-82fe-6b79c52be39d',48977408.0);
INSERT INTO "span_table" VALUES('d928f75ec747c734','97839313309622e327a5336683a6cefe','d928f75ec747c734','','',0,'invoke_agent agent',1,'1795482044364199200','1795482044575776500','{"gen_ai":{"conversation":{"id":"07bb7885-0a3b-5947-82fe-6b79c52be39d"},"provider":{"name":"agentjet"},"operation":{"name":"invoke_agent"},"agent":{"name":"agent"},"input":{"messages":[{"role":"user","parts":[{"type":"text","content":"Which is larger, 61 or 46?"}]}]},"output":{"messages":[{"role":"assistant","parts":[{"type":"text","content":"5 + 5 = 11"}],"finish_reason":"stop"}]}},"ajet":{"episode":{"id":"1.1/random-0-2/0"},"task":{"id":"random-0-2"},"phase":"train","step":1}}',0,'[{"name":"gen_ai.evaluation.result","time":"1795482044575776500","attributes":{"gen_ai":{"evaluation":{"name":"reward","score":{"value":0.25}}}},"droppedAttributesCount":0}]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"service":{"name":"sums"}}}','{"name":"ajet","version":"","attributes":{}}',1,'sums','invoke_agent',NULL,NULL,NULL,NULL,NULL,NULL,'07bb7885-0a3b-5947-82fe-6b79c52be39d',211577344.0);
INSERT INTO "span_table" VALUES('d9b13bcee2b4d794','97839313309622e327a5336683a6cefe','d9b13bcee2b4d794','','d928f75ec747c734',0,'chat starter',3,'1795482044452244200','1795482044539174100','{"gen_ai":{"conversation":{"id":"07bb7885-0a3b-5947-82fe-6b79c52be39d"},"provider":{"name":"agentjet"},"operation":{"name":"chat"},"agent":{"name":"agent"},"request":{"model":"starter"},"input":{"messages":[{"role":"user","parts":[{"type":"text","content":"Which is larger, 61 or 46?"}]}]},"output":{"messages":[{"role":"assistant","parts":[{"type":"text","content":"5 + 5 = 11"}],"finish_reason":"stop"}]},"response":{"finish_reasons":["stop"]},"usage":{"input_tokens":28,"output_tokens":9}},"ajet":{"target":"policy"}}',0,'[]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"service":{"name":"sums"}}}','{"name":"ajet","version":"","attributes":{}}',1,'sums','chat',NULL,NULL,'starter',28,9,37,'07bb7885-0a3b-5947-82fe-6b79c52be39d',86929920.0);
INSERT INTO "span_table" VALUES('2c2bd8d31c5141c2','dc318425c547b1d65e92eb9274e37e0b','2c2bd8d31c5141c2','','',0,'invoke_agent agent',1,'1795482044364223000','1795482044591911700','{"gen_ai":{"conversation":{"id":"07bb7885-0a3b-5947-82fe-6b79c52be39d"},"provider":{"name":"agentjet"},"operation":{"name":"invoke_agent"},"agent":{"name":"agent"},"input":{"messages":[{"role":"user","parts":[{"type":"text","content":"Which is larger, 61 or 46?"}]}]},"output":{"messages":[{"role":"assistant","parts":[{"type":"text","content":"1 + 6 = 7"}],"finish_reason":"stop"}]}},"ajet":{"episode":{"id":"1.1/random-0-2/1"},"task":{"id":"random-0-2"},"phase":"train","step":1}}',0,'[{"name":"gen_ai.evaluation.result","time":"1795482044591911700","attributes":{"gen_ai":{"evaluation":{"name":"reward","score":{"value":0.25}}}},"droppedAttributesCount":0}]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"service":{"name":"sums"}}}','{"name":"ajet","version":"","attributes":{}}',1,'sums','invoke_agent',NULL,NULL,NULL,NULL,NULL,NULL,'07bb7885-0a3b-5947-82fe-6b79c52be39d',227688704.0);
INSERT INTO "span_table" VALUES('2c12420109429798','dc318425c547b1d65e92eb9274e37e0b','2c12420109429798','','2c2bd8d31c5141c2',0,'chat starter',3,'1795482044499949000','1795482044583914200','{"gen_ai":{"conversation":{"id":"07bb7885-0a3b-5947-82fe-6b79c52be39d"},"provider":{"name":"agentjet"},"operation":{"name":"chat"},"agent":{"name":"agent"},"request":{"model":"starter"},"input":{"messages":[{"role":"user","parts":[{"type":"text","content":"Which is larger, 61 or 46?"}]}]},"output":{"messages":[{"role":"assistant","parts":[{"type":"text","content":"1 + 6 = 7"}],"finish_reason":"stop"}]},"response":{"finish_reasons":["stop"]},"usage":{"input_tokens":28,"output_tokens":8}},"ajet":{"target":"policy"}}',0,'[]',0,'[]',0,'{"code":1,"message":""}','{"attributes":{"service":{"name":"sums"}}}','{"name":"ajet","version":"","attributes":{}}',1,'sums','chat',NULL,NULL,'starter',28,8,36,'07bb7885-0a3b-5947-82fe-6b79c52be39d',83965184.0);
CREATE TABLE "typeorm_metadata" ("type" varchar NOT NULL, "database" varchar, "schema" varchar, "table" varchar, "name" varchar, "value" text);
INSERT INTO "typeorm_metadata" VALUES('VIEW',NULL,NULL,NULL,'run_view','SELECT COUNT(DISTINCT "run"."project") AS "totalProjects", COUNT(*) AS "totalRuns", COUNT(DISTINCT CASE 
            WHEN "run"."timestamp" > strftime(''%Y-%m-%d %H:%M:%S'', ''now'', ''-1 month'') 
            THEN "run"."project" END) AS "projectsMonthAgo", COUNT(CASE 
            WHEN "run"."timestamp" > strftime(''%Y-%m-%d %H:%M:%S'', ''now'', ''-1 month'')
            THEN 1 END) AS "runsMonthAgo", COUNT(DISTINCT CASE  
            WHEN "run"."timestamp" > strftime(''%Y-%m-%d %H:%M:%S'', ''now'', ''-7 days'')
            THEN "run"."project" END) AS "projectsWeekAgo", COUNT(CASE 
            WHEN "run"."timestamp" > strftime(''%Y-%m-%d %H:%M:%S'', ''now'', ''-7 days'')
            THEN 1 END) AS "runsWeekAgo", COUNT(DISTINCT CASE 
            WHEN "run"."timestamp" > strftime(''%Y-%m-%d %H:%M:%S'', ''now'', ''-1 year'')
            THEN "run"."project" END) AS "projectsYearAgo", COUNT(CASE 
            WHEN "run"."timestamp" > strftime(''%Y-%m-%d %H:%M:%S'', ''now'', ''-1 year'')
            THEN 1 END) AS "runsYearAgo", (
            WITH RECURSIVE
            months(date) AS (
                SELECT date(''now'', ''start of month'', ''-11 months'')
                UNION ALL
                SELECT date(date, ''+1 month'')
                FROM months
                WHERE date < date(''now'', ''start of month'')
            ),
            monthly_counts AS (
                SELECT 
                    strftime(''%Y-%m'', months.date) as month,
                    COUNT(CASE 
                        WHEN strftime(''%Y-%m'', "run"."timestamp") = strftime(''%Y-%m'', months.date) 
                        THEN 1 
                    END) as count
                FROM months
                LEFT JOIN run_table run ON strftime(''%Y-%m'', "run"."timestamp") = strftime(''%Y-%m'', months.date)
                GROUP BY strftime(''%Y-%m'', months.date)
                ORDER BY month DESC
            )
            SELECT json_group_array(
                json_object(
                    ''month'', month,
                    ''count'', count
                )
            )
            FROM monthly_counts
        ) AS "monthlyRuns" FROM "run_table" "run"');
INSERT INTO "typeorm_metadata" VALUES('VIEW',NULL,NULL,NULL,'model_invocation_view','SELECT COUNT(CASE
                    WHEN ("span"."operationName" = ''chat''
                         OR "span"."operationName" = ''chat_model'')
                    THEN 1
                END) AS "totalModelInvocations", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = ''chat''
                 OR "span"."operationName" = ''chat_model'')
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "totalTokens", COUNT(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = ''chat''
                 OR "span"."operationName" = ''chat_model'')
            THEN 1
        END) AS "chatModelInvocations", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = ''chat''
                 OR "span"."operationName" = ''chat_model'')
            AND "span"."startTimeUnixNano" > (strftime(''%s'', ''now'', ''-1 month'') * 1000000000)
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "tokensMonthAgo", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = ''chat''
                 OR "span"."operationName" = ''chat_model'')
            AND "span"."startTimeUnixNano" > (strftime(''%s'', ''now'', ''-7 days'') * 1000000000)
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "tokensWeekAgo", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = ''chat''
                 OR "span"."operationName" = ''chat_model'')
            AND "span"."startTimeUnixNano" > (strftime(''%s'', ''now'', ''-1 year'') * 1000000000)
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "tokensYearAgo", COUNT(CASE
                    WHEN ("span"."operationName" = ''chat''
                         OR "span"."operationName" = ''chat_model'')
                    AND "span"."startTimeUnixNano" > (strftime(''%s'', ''now'', ''-1 month'') * 1000000000)
                    THEN 1
                END) AS "modelInvocationsMonthAgo", COUNT(CASE
                    WHEN ("span"."operationName" = ''chat''
                         OR "span"."operationName" = ''chat_model'')
                    AND "span"."startTimeUnixNano" > (strftime(''%s'', ''now'', ''-7 days'') * 1000000000)
                    THEN 1
                END) AS "modelInvocationsWeekAgo", COUNT(CASE
                    WHEN ("span"."operationName" = ''chat''
                         OR "span"."operationName" = ''chat_model'')
                    AND "span"."startTimeUnixNano" > (strftime(''%s'', ''now'', ''-1 year'') * 1000000000)
                    THEN 1
                END) AS "modelInvocationsYearAgo" FROM "span_table" "span" INNER JOIN "run_table" "run" ON "run"."id" = "span"."conversationId"');
INSERT INTO "typeorm_metadata" VALUES('VIEW',NULL,NULL,NULL,'friday_app_reply_view','SELECT "r"."id" AS "id", "r"."startTimeStamp" AS "startTimeStamp", "r"."endTimeStamp" AS "endTimeStamp", "r"."finished" AS "finished", "m"."name" AS "name", "m"."role" AS "role", (
                SELECT json_group_array(json(content))
                FROM (
                    SELECT content 
                    FROM friday_app_message_table
                    WHERE reply_id = r.id
                    ORDER BY timestamp ASC
                )
            ) AS "content" FROM "friday_app_reply_table" "r" LEFT JOIN "friday_app_message_table" "m" ON "m"."reply_id" = "r"."id" GROUP BY "r"."id"');
CREATE INDEX "IDX_a9c90d6dcc77a52eee70759192" ON "span_table" ("conversationId") ;
CREATE INDEX "IDX_9b03613341a28f3adc4b25bede" ON "span_table" ("totalTokens") ;
CREATE INDEX "IDX_b3cef24d908083f74e0296f019" ON "span_table" ("outputTokens") ;
CREATE INDEX "IDX_eed52eb7930ae0a16a637ae0fc" ON "span_table" ("inputTokens") ;
CREATE INDEX "IDX_1a65be629f1e8717ae936f237f" ON "span_table" ("model") ;
CREATE INDEX "IDX_6a42dec2234c4d8f03e4636a1c" ON "span_table" ("instrumentationName") ;
CREATE INDEX "IDX_50345441e37fcaa6a81f9e1f23" ON "span_table" ("operationName") ;
CREATE INDEX "IDX_597fb8acbd91e2eb45550a3a27" ON "span_table" ("serviceName") ;
CREATE INDEX "IDX_bdb32c4f77e940ff499cfb66be" ON "span_table" ("latencyNs") ;
CREATE INDEX "IDX_10fc9e48821fafed09920bbae5" ON "span_table" ("statusCode") ;
CREATE INDEX "IDX_23807b42325ccc1f324741edea" ON "span_table" ("startTimeUnixNano") ;
CREATE INDEX "IDX_ae666e33c6833fb99bba2d8c0d" ON "span_table" ("parentSpanId") ;
CREATE INDEX "IDX_fca75f17a2ac51391c28a1fe6c" ON "span_table" ("spanId") ;
CREATE INDEX "IDX_e53c038912e2db29c8ab91e23a" ON "span_table" ("traceId") ;
CREATE VIEW "run_view" AS SELECT COUNT(DISTINCT "run"."project") AS "totalProjects", COUNT(*) AS "totalRuns", COUNT(DISTINCT CASE 
            WHEN "run"."timestamp" > strftime('%Y-%m-%d %H:%M:%S', 'now', '-1 month') 
            THEN "run"."project" END) AS "projectsMonthAgo", COUNT(CASE 
            WHEN "run"."timestamp" > strftime('%Y-%m-%d %H:%M:%S', 'now', '-1 month')
            THEN 1 END) AS "runsMonthAgo", COUNT(DISTINCT CASE  
            WHEN "run"."timestamp" > strftime('%Y-%m-%d %H:%M:%S', 'now', '-7 days')
            THEN "run"."project" END) AS "projectsWeekAgo", COUNT(CASE 
            WHEN "run"."timestamp" > strftime('%Y-%m-%d %H:%M:%S', 'now', '-7 days')
            THEN 1 END) AS "runsWeekAgo", COUNT(DISTINCT CASE 
            WHEN "run"."timestamp" > strftime('%Y-%m-%d %H:%M:%S', 'now', '-1 year')
            THEN "run"."project" END) AS "projectsYearAgo", COUNT(CASE 
            WHEN "run"."timestamp" > strftime('%Y-%m-%d %H:%M:%S', 'now', '-1 year')
            THEN 1 END) AS "runsYearAgo", (
            WITH RECURSIVE
            months(date) AS (
                SELECT date('now', 'start of month', '-11 months')
                UNION ALL
                SELECT date(date, '+1 month')
                FROM months
                WHERE date < date('now', 'start of month')
            ),
            monthly_counts AS (
                SELECT 
                    strftime('%Y-%m', months.date) as month,
                    COUNT(CASE 
                        WHEN strftime('%Y-%m', "run"."timestamp") = strftime('%Y-%m', months.date) 
                        THEN 1 
                    END) as count
                FROM months
                LEFT JOIN run_table run ON strftime('%Y-%m', "run"."timestamp") = strftime('%Y-%m', months.date)
                GROUP BY strftime('%Y-%m', months.date)
                ORDER BY month DESC
            )
            SELECT json_group_array(
                json_object(
                    'month', month,
                    'count', count
                )
            )
            FROM monthly_counts
        ) AS "monthlyRuns" FROM "run_table" "run";
CREATE VIEW "model_invocation_view" AS SELECT COUNT(CASE
                    WHEN ("span"."operationName" = 'chat'
                         OR "span"."operationName" = 'chat_model')
                    THEN 1
                END) AS "totalModelInvocations", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = 'chat'
                 OR "span"."operationName" = 'chat_model')
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "totalTokens", COUNT(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = 'chat'
                 OR "span"."operationName" = 'chat_model')
            THEN 1
        END) AS "chatModelInvocations", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = 'chat'
                 OR "span"."operationName" = 'chat_model')
            AND "span"."startTimeUnixNano" > (strftime('%s', 'now', '-1 month') * 1000000000)
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "tokensMonthAgo", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = 'chat'
                 OR "span"."operationName" = 'chat_model')
            AND "span"."startTimeUnixNano" > (strftime('%s', 'now', '-7 days') * 1000000000)
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "tokensWeekAgo", COALESCE(SUM(CASE
            WHEN "span"."totalTokens" IS NOT NULL
            AND ("span"."operationName" = 'chat'
                 OR "span"."operationName" = 'chat_model')
            AND "span"."startTimeUnixNano" > (strftime('%s', 'now', '-1 year') * 1000000000)
            THEN CAST("span"."totalTokens" AS INTEGER)
            ELSE 0
        END), 0) AS "tokensYearAgo", COUNT(CASE
                    WHEN ("span"."operationName" = 'chat'
                         OR "span"."operationName" = 'chat_model')
                    AND "span"."startTimeUnixNano" > (strftime('%s', 'now', '-1 month') * 1000000000)
                    THEN 1
                END) AS "modelInvocationsMonthAgo", COUNT(CASE
                    WHEN ("span"."operationName" = 'chat'
                         OR "span"."operationName" = 'chat_model')
                    AND "span"."startTimeUnixNano" > (strftime('%s', 'now', '-7 days') * 1000000000)
                    THEN 1
                END) AS "modelInvocationsWeekAgo", COUNT(CASE
                    WHEN ("span"."operationName" = 'chat'
                         OR "span"."operationName" = 'chat_model')
                    AND "span"."startTimeUnixNano" > (strftime('%s', 'now', '-1 year') * 1000000000)
                    THEN 1
                END) AS "modelInvocationsYearAgo" FROM "span_table" "span" INNER JOIN "run_table" "run" ON "run"."id" = "span"."conversationId";
CREATE VIEW "friday_app_reply_view" AS SELECT "r"."id" AS "id", "r"."startTimeStamp" AS "startTimeStamp", "r"."endTimeStamp" AS "endTimeStamp", "r"."finished" AS "finished", "m"."name" AS "name", "m"."role" AS "role", (
                SELECT json_group_array(json(content))
                FROM (
                    SELECT content 
                    FROM friday_app_message_table
                    WHERE reply_id = r.id
                    ORDER BY timestamp ASC
                )
            ) AS "content" FROM "friday_app_reply_table" "r" LEFT JOIN "friday_app_message_table" "m" ON "m"."reply_id" = "r"."id" GROUP BY "r"."id";
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('migrations',2);
COMMIT;
